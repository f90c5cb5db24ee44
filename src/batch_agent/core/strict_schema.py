"""JSON schemas in the subset that some providers enforce."""

from collections.abc import Mapping
from typing import Any

from .schema import JsonSchema, is_object

_KEPT_AS_IT_IS = ("enum", "const", "type", "format", "description", "$ref")
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

    What a default would have filled in, the model has to say. Without `keeps_limits`, bounds on numbers, texts and
    lists are left out: whoever reads the answer checks them."""
    if not is_object(schema):
        return None
    try:
        result: JsonSchema = _strict(schema, keeps_limits)
    except _NotStrict:
        return None
    return result


def _strict(node: Any, keeps_limits: bool) -> Any:
    if not isinstance(node, Mapping):  # true: anything goes
        raise _NotStrict
    if "$ref" in node:  # nothing may stand beside a reference
        return {"$ref": node["$ref"]}
    if "allOf" in node or "prefixItems" in node or "patternProperties" in node or "not" in node:
        raise _NotStrict
    result: dict[str, Any] = {}
    for key, value in node.items():
        if key in _KEPT_AS_IT_IS or (key in _LIMITS and keeps_limits):
            result[key] = value
        elif key in _NAMED:
            result[key] = {name: _strict(part, keeps_limits) for name, part in value.items()}
        elif key in ("anyOf", "oneOf"):
            result["anyOf"] = [_strict(part, keeps_limits) for part in value]
        elif key == "items":
            result[key] = _strict(value, keeps_limits)
    if is_object(node):
        if not node.get("properties") or node.get("additionalProperties"):
            raise _NotStrict  # a dictionary with keys of the model's own choice
        result |= {"required": list(node["properties"]), "additionalProperties": False}
    elif not result.keys() & {"type", "enum", "const", "anyOf"} or ("array" in _types(node) and "items" not in node):
        raise _NotStrict
    return result


def _types(node: Mapping[str, Any]) -> list[Any]:
    kind = node.get("type")
    return kind if isinstance(kind, list) else [kind]
