"""Schemas and instructions of action mode, in which a model replies with one JSON object per turn.

A schema is enforced by the server if it can, and otherwise described in the prompt."""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from ..core.agent_config import ACTION_ARGUMENTS, ACTION_FINAL, ACTION_TOOL
from ..core.messages import ToolSpec
from ..core.protocols.backend import Traits
from ..core.schema import JsonSchema, closed_object, embed, object_of, strict_form, with_definitions

_PYTHON_NAMES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "object": "dict",
    "null": "None",
}
"""Python names of JSON types: models know this form of signatures from their training data."""


def turn_schema(tools: Iterable[ToolSpec], answer: JsonSchema) -> JsonSchema:
    """Schema of a turn: a call of one of the tools, or the final answer."""
    definitions: dict[str, Any] = {}
    choices = _calls(tools, definitions)
    choices.append(closed_object({ACTION_FINAL: embed(answer, ACTION_FINAL, definitions)}))
    return with_definitions({"anyOf": choices}, definitions)


def call_schema(tools: Iterable[ToolSpec]) -> JsonSchema:
    """Schema of a turn that must call one of the tools."""
    definitions: dict[str, Any] = {}
    return with_definitions({"anyOf": _calls(tools, definitions)}, definitions)


def last_turn_schema(answer: JsonSchema) -> JsonSchema:
    """Schema of the last turn: only the final answer."""
    return object_of({ACTION_FINAL: answer})


def _calls(tools: Iterable[ToolSpec], definitions: dict[str, Any]) -> list[JsonSchema]:
    return [
        closed_object(
            {
                ACTION_TOOL: {"const": tool.name},
                # The prefix distinguishes a tool named "final" from the answer.
                ACTION_ARGUMENTS: embed(tool.parameters, f"{ACTION_TOOL}.{tool.name}", definitions),
            }
        )
        for tool in tools
    ]


def instructions(tools: Iterable[ToolSpec]) -> str:
    """Description of the tools for the system prompt. Short, and phrased so that a model of 135M parameters follows it;
    docs/embedded-model.md has the measurements."""
    return "\n".join(
        [
            "You use tools. Reply with one JSON object.",
            "Tools:",
            *map(_signature, tools),
            f'To call a tool, reply {{"{ACTION_TOOL}": NAME, "{ACTION_ARGUMENTS}": {{...}}}}.',
            f'When you have the result, reply {{"{ACTION_FINAL}": {{...}}}}.',
        ]
    )


def _signature(tool: ToolSpec) -> str:
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    required = tool.parameters.get("required", ())
    definitions: Mapping[str, Any] = tool.parameters.get("$defs", {})
    arguments = ", ".join(
        f"{name}{'' if name in required else '?'}: {_type(schema, definitions)}{_note(schema)}"
        for name, schema in properties.items()
    )
    description = " ".join(tool.description.split())
    return f"{tool.name}({arguments})" + (f" - {description}" if description else "")


def _type(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return "|".join(orjson.dumps(value).decode() for value in schema["enum"])
    if "const" in schema:
        return orjson.dumps(schema["const"]).decode()
    if "anyOf" in schema:
        return "|".join(_type(option, definitions) for option in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list[{_type(schema.get('items', {}), definitions)}]"
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        target = definitions.get(name, {})
        return _type(target, definitions) if "enum" in target else name
    name = schema.get("type", "any")
    return _PYTHON_NAMES.get(name, "any") if isinstance(name, str) else "any"


def _note(schema: Mapping[str, Any]) -> str:
    return f" ({' '.join(schema['description'].split())})" if schema.get("description") else ""


def is_enforced(schema: JsonSchema, traits: Traits) -> bool:
    """Whether the server enforces this schema."""
    return traits.json_schema and (not traits.strict_schema or strict_form(schema) is not None)


def schema_instruction(schema: JsonSchema) -> str:
    """Description of the schema in the prompt, for servers that do not enforce it."""
    return "Answer with JSON only, no other text. It must fit this JSON schema:\n" + orjson.dumps(schema).decode()
