"""JSON schemas as plain data, their strict form for providers that enforce a subset, and checks for Pydantic models.

The checks do not import Pydantic: a program that has a model has imported it."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from pydantic import BaseModel, SecretBytes, SecretStr

JsonSchema = Mapping[str, Any]

_DEFINITIONS = ("$defs", "definitions")
_NAMED_PARTS = ("properties", *_DEFINITIONS)
_VALUES = ("default", "const", "enum", "examples", "discriminator")


def without_titles(schema: Any) -> Any:
    """A schema without Pydantic's generated titles, which only cost tokens. A property named title stays."""
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


def is_object(schema: JsonSchema) -> bool:
    """Whether the schema itself says that the value is an object. References are not followed."""
    kind = schema.get("type")
    return kind == "object" or (kind is None and "properties" in schema)


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
    """`schema` as a part of a larger one: its definitions move to `definitions`, under names of its own. A schema
    that refers to its own root moves there too, so that the reference still means the same."""
    for home in _DEFINITIONS:
        for key, value in schema.get(home, {}).items():
            definitions[f"{name}.{key}"] = _rename(value, name)
    part = _rename({key: value for key, value in schema.items() if key not in _DEFINITIONS}, name)
    if not _refers_to_root(schema):
        return part
    definitions[name] = part
    return {"$ref": f"#/$defs/{name}"}


def with_definitions(schema: dict[str, Any], definitions: dict[str, Any]) -> JsonSchema:
    return {**schema, "$defs": definitions} if definitions else schema


def _rename(node: Any, name: str) -> Any:
    if isinstance(node, Mapping):
        return {key: _reference(value, name) if key == "$ref" else _rename(value, name) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_rename(item, name) for item in node]
    return node


def _reference(target: Any, name: str) -> Any:
    if not isinstance(target, str):  # a property that is called $ref
        return _rename(target, name)
    if prefix := _definitions_prefix(target):
        return f"#/$defs/{name}.{target.removeprefix(prefix)}"
    return f"#/$defs/{name}{target[1:]}" if target.startswith("#") else target


def _refers_to_root(node: Any) -> bool:
    if isinstance(node, Mapping):
        target = node.get("$ref")
        to_root = isinstance(target, str) and target.startswith("#") and not _definitions_prefix(target)
        return to_root or any(map(_refers_to_root, node.values()))
    return isinstance(node, list | tuple) and any(map(_refers_to_root, node))


def _definitions_prefix(target: str) -> str | None:
    return next((f"#/{home}/" for home in _DEFINITIONS if target.startswith(f"#/{home}/")), None)


_UNCHANGED = ("enum", "const", "type", "format", "description", "$ref")
_LIMITS = (
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "pattern",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
)
_NAMED = ("$defs", "definitions", "properties")


class _NotStrict(Exception):
    pass


def strict_form(schema: JsonSchema, *, keeps_limits: bool = True) -> JsonSchema | None:
    """`schema` with all objects closed and all their properties required, or None if that would change what it means.

    The model must provide values that have defaults. Without `keeps_limits`, bounds on numbers, strings and lists are
    left out: validation of the answer checks them."""
    if not is_object(schema):
        return None
    try:
        result: JsonSchema = _strict(schema, keeps_limits)
    except _NotStrict:
        return None
    return result


def _strict(node: Any, keeps_limits: bool) -> Any:
    if not isinstance(node, Mapping):  # true: any value
        raise _NotStrict
    if "$ref" in node:  # a reference must be alone in its object
        return {"$ref": node["$ref"]}
    if "allOf" in node or "prefixItems" in node or "patternProperties" in node or "not" in node:
        raise _NotStrict
    result: dict[str, Any] = {}
    for key, value in node.items():
        if key in _UNCHANGED or (key in _LIMITS and keeps_limits):
            result[key] = value
        elif key in _NAMED:
            result[key] = {name: _strict(part, keeps_limits) for name, part in value.items()}
        elif key in ("anyOf", "oneOf"):
            result["anyOf"] = [_strict(part, keeps_limits) for part in value]
        elif key == "items":
            result[key] = _strict(value, keeps_limits)
    if is_object(node):
        if not node.get("properties") or node.get("additionalProperties"):
            raise _NotStrict  # a dictionary with arbitrary keys
        result |= {"required": list(node["properties"]), "additionalProperties": False}
    elif not result.keys() & {"type", "enum", "const", "anyOf"} or ("array" in _types(node) and "items" not in node):
        raise _NotStrict
    return result


def _types(node: Mapping[str, Any]) -> list[Any]:
    kind = node.get("type")
    return kind if isinstance(kind, list) else [kind]


def is_model(value: object) -> "TypeGuard[BaseModel]":
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(value, pydantic.BaseModel)


def is_model_class(value: object) -> "TypeGuard[type[BaseModel]]":
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(value, type) and issubclass(value, pydantic.BaseModel)


def is_secret(value: object) -> "TypeGuard[SecretStr | SecretBytes]":
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(value, pydantic.SecretStr | pydantic.SecretBytes)
