"""Bounds for JSON schemas, so that the small embedded model ends its answers."""

from collections.abc import Iterable, Mapping
from typing import Any

MAX_CHARACTERS = 400
MAX_ITEMS = 8
MAX_DIGITS = 12
MAX_DECIMALS = 6

# Read by llguidance, which enforces schemas for the default model. Free whitespace costs a third of the answer's tokens
# and can go on forever, also with a whitespace_pattern (it may match repeatedly). Without `lenient` a keyword
# that llguidance does not know drops the whole schema, silently.
GUIDANCE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": True}


def add_schema_hints(schema: Mapping[str, Any]) -> dict[str, Any]:
    """`schema` with compact output and a bound for every unbounded part; the original is not changed.

    A small model repeats itself until max_tokens truncates the JSON; a bound keeps the answer valid.
    Every answer that is valid for the result is valid for `schema` too.
    """
    return {**_bounded(schema), "x-guidance": GUIDANCE}


def _bounded(schema: Any, *, is_merged: bool = False) -> Any:
    if not isinstance(schema, Mapping):  # true and false are schemas too
        return schema
    result = {keyword: _bounded_keyword(keyword, value) for keyword, value in schema.items()}
    if not {"enum", "const"} & schema.keys():
        for kind in _kinds(schema):
            result |= _bounds(kind, schema, is_merged or "allOf" in schema)
    return result


def _bounded_keyword(keyword: str, value: Any) -> Any:
    match keyword:
        case "properties" | "patternProperties" | "$defs" | "definitions":
            return {name: _bounded(inner) for name, inner in value.items()}
        case "anyOf" | "oneOf" | "prefixItems":
            return [_bounded(inner) for inner in value]
        case "allOf":
            return [_bounded(inner, is_merged=True) for inner in value]
        case "items" | "additionalProperties":
            return _bounded(value)
        case _:
            return value


def _kinds(schema: Mapping[str, Any]) -> Iterable[str]:
    named = schema.get("type", ())
    return (named,) if isinstance(named, str) else named


def _bounds(kind: str, schema: Mapping[str, Any], is_merged: bool) -> dict[str, Any]:
    """Keywords that bound a value of this type, if the schema has none."""
    match kind:
        case "string" if not {"maxLength", "pattern", "format"} & schema.keys():
            return {"maxLength": max(MAX_CHARACTERS, schema.get("minLength", 0))}
        case "array" if "maxItems" not in schema:
            return {"maxItems": max(MAX_ITEMS, schema.get("minItems", 0), len(schema.get("prefixItems", ())))}
        case "object" if is_merged:  # properties of the other parts of an allOf would be rejected
            return {}
        case "object" if "properties" in schema and "additionalProperties" not in schema:
            return {"additionalProperties": False}
        case "object" if "properties" not in schema and "maxProperties" not in schema:
            return {"maxProperties": max(MAX_ITEMS, schema.get("minProperties", 0))}
        case "integer" if not _LIMITS & schema.keys():
            return {"minimum": 1 - 10**MAX_DIGITS, "maximum": 10**MAX_DIGITS - 1}
        case "number" if "multipleOf" not in schema:
            return {"multipleOf": 10**-MAX_DECIMALS}
        case _:
            return {}


_LIMITS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
