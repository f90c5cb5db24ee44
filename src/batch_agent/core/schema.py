"""JSON schemas as plain data: what servers enforce and models read."""

from collections.abc import Mapping
from typing import Any

JsonSchema = Mapping[str, Any]

_DEFINITIONS = ("$defs", "definitions")
_NAMED_PARTS = ("properties", *_DEFINITIONS)
_VALUES = ("default", "const", "enum", "examples")


def without_titles(schema: Any) -> Any:
    """A schema without Pydantic's generated titles, which cost tokens and say nothing. A property named title stays."""
    if isinstance(schema, list):
        return [without_titles(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    tidy: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NAMED_PARTS and isinstance(value, Mapping):
            tidy[key] = {name: without_titles(part) for name, part in value.items()}
        elif key in _VALUES:
            tidy[key] = value
        elif key != "title" or not isinstance(value, str):
            tidy[key] = without_titles(value)
    return tidy


def object_of(parts: Mapping[str, JsonSchema]) -> JsonSchema:
    """A schema of an object with exactly these properties; the definitions of each part move to the root."""
    definitions: dict[str, Any] = {}
    properties = {name: embed(part, name, definitions) for name, part in parts.items()}
    return with_definitions(closed_object(properties), definitions)


def closed_object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def embed(schema: JsonSchema, name: str, definitions: dict[str, Any]) -> Any:
    """`schema` as a part of a larger one: its definitions move to `definitions`, under names of its own."""
    for home in _DEFINITIONS:
        for key, value in schema.get(home, {}).items():
            definitions[f"{name}.{key}"] = _rename(value, name)
    return _rename({key: value for key, value in schema.items() if key not in _DEFINITIONS}, name)


def with_definitions(schema: dict[str, Any], definitions: dict[str, Any]) -> JsonSchema:
    return {**schema, "$defs": definitions} if definitions else schema


def _rename(node: Any, name: str) -> Any:
    if isinstance(node, Mapping):
        return {key: _reference(value, name) if key == "$ref" else _rename(value, name) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_rename(item, name) for item in node]
    return node


def _reference(target: Any, name: str) -> Any:
    for home in _DEFINITIONS:
        if isinstance(target, str) and target.startswith(f"#/{home}/"):
            return f"#/$defs/{name}.{target.removeprefix(f'#/{home}/')}"
    return target
