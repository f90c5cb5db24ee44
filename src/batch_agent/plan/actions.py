"""Action mode as the server and the model see it: one JSON object per turn."""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from ..core.prompt import ToolSpec
from ..core.rules import ACTION_ARGUMENTS, ACTION_FINAL, ACTION_TOOL
from ..core.schema import JsonSchema, closed_object, embed, object_of, with_definitions


def turn_schema(tools: Iterable[ToolSpec], answer: JsonSchema) -> JsonSchema:
    """A call of one of the tools, or the final answer."""
    definitions: dict[str, Any] = {}
    choices = [
        closed_object(
            {ACTION_TOOL: {"const": tool.name}, ACTION_ARGUMENTS: embed(tool.parameters, tool.name, definitions)}
        )
        for tool in tools
    ]
    choices.append(closed_object({ACTION_FINAL: embed(answer, ACTION_FINAL, definitions)}))
    return with_definitions({"anyOf": choices}, definitions)


def last_turn_schema(answer: JsonSchema) -> JsonSchema:
    """Only the final answer."""
    return object_of({ACTION_FINAL: answer})


def instructions(tools: Iterable[ToolSpec]) -> str:
    """What the system prompt says about the tools: short, because small models read it too."""
    lines = [_signature(tool) for tool in tools]
    return (
        "Tools:\n"
        + "\n".join(lines)
        + f'\nReply with one JSON object: {{"{ACTION_TOOL}": name, "{ACTION_ARGUMENTS}": {{...}}}} to call a tool, '
        f'or {{"{ACTION_FINAL}": answer}} when you know the answer.'
    )


def _signature(tool: ToolSpec) -> str:
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    required = tool.parameters.get("required", ())
    arguments = ", ".join(
        f"{name}{'' if name in required else '?'}: {_type(schema)}{_note(schema)}"
        for name, schema in properties.items()
    )
    description = " ".join(tool.description.split())
    return f"- {tool.name}({arguments})" + (f": {description}" if description else "")


def _type(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return "|".join(orjson.dumps(value).decode() for value in schema["enum"])
    if "anyOf" in schema:
        return "|".join(_type(option) for option in schema["anyOf"])
    if schema.get("type") == "array":
        return f"{_type(schema.get('items', {}))}[]"
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    return str(schema.get("type", "any"))


def _note(schema: Mapping[str, Any]) -> str:
    return f" ({schema['description']})" if schema.get("description") else ""
