"""A JSON schema the embedded default model can answer without rambling."""

from collections.abc import Iterable, Mapping
from typing import Any

MOST_CHARACTERS = 400
MOST_ITEMS = 8
MOST_DIGITS = 12
MOST_DECIMALS = 6

# Read by llguidance, which enforces schemas for the default model. Free whitespace costs a third of the answer's tokens
# and can go on for ever, with a whitespace_pattern too (it may match again and again). Without `lenient` a keyword
# that llguidance does not know drops the whole schema, silently.
GUIDANCE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": True}


def add_schema_hints(schema: Mapping[str, Any]) -> dict[str, Any]:
    """`schema` with compact output asked for, and an end to every part that has none; the original is not changed.

    A small model repeats itself until max_tokens cuts the JSON in half; an end of its own keeps the answer valid.
    Every answer that fits the result fits `schema` too.
    """
    return {**_bounded(schema), "x-guidance": GUIDANCE}


def _bounded(schema: Any, *, is_merged: bool = False) -> Any:
    if not isinstance(schema, Mapping):  # true and false are schemas too
        return schema
    result = {keyword: _inside(keyword, value) for keyword, value in schema.items()}
    if not {"enum", "const"} & schema.keys():
        for kind in _kinds(schema):
            result |= _end(kind, schema, is_merged or "allOf" in schema)
    return result


def _inside(keyword: str, value: Any) -> Any:
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


def _end(kind: str, schema: Mapping[str, Any], is_merged: bool) -> dict[str, Any]:
    """The keywords that end a value of this kind, where the schema has none of its own."""
    match kind:
        case "string" if not {"maxLength", "pattern", "format"} & schema.keys():
            return {"maxLength": max(MOST_CHARACTERS, schema.get("minLength", 0))}
        case "array" if "maxItems" not in schema:
            return {"maxItems": max(MOST_ITEMS, schema.get("minItems", 0), len(schema.get("prefixItems", ())))}
        case "object" if is_merged:  # the other parts of an allOf have properties that would then be refused
            return {}
        case "object" if "properties" in schema and "additionalProperties" not in schema:
            return {"additionalProperties": False}
        case "object" if "properties" not in schema and "maxProperties" not in schema:
            return {"maxProperties": max(MOST_ITEMS, schema.get("minProperties", 0))}
        case "integer" if not _LIMITS & schema.keys():
            return {"minimum": 1 - 10**MOST_DIGITS, "maximum": 10**MOST_DIGITS - 1}
        case "number" if "multipleOf" not in schema:
            return {"multipleOf": 10**-MOST_DECIMALS}
        case _:
            return {}


_LIMITS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
