"""Deterministic instances of JSON schemas: equal for equal seeds."""

from collections.abc import Callable, Mapping
from typing import Any

from ..core.fast_dataclass import dataclass

MAX_DEPTH = 8
"""Below this depth, only required properties are filled, and arrays are as short as allowed."""

_FORMATS = {
    "date-time": "2025-01-{day:02d}T00:00:00Z",
    "date": "2025-01-{day:02d}",
    "time": "00:00:{day:02d}Z",
    "uuid": "00000000-0000-4000-8000-{day:012d}",
    "email": "agent{day}@example.com",
    "uri": "https://example.com/{day}",
}


@dataclass(frozen=True, slots=True)
class Instances:
    """Makes instances. `word(seed)`: returns a free string. `only_required`: leaves optional properties out."""

    word: Callable[[int], str]
    only_required: bool = False

    def make(self, schema: Any, seed: int) -> Any:
        """An instance of `schema`. `pattern` and cross-field rules are ignored."""
        definitions = schema if isinstance(schema, Mapping) else {}
        return self._make(schema, definitions, seed, 0)

    def _make(self, schema: Any, root: Mapping[str, Any], seed: int, depth: int) -> Any:
        if not isinstance(schema, Mapping):
            return self.word(seed)
        schema = flatten(schema, root)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return schema["enum"][seed % len(schema["enum"])]
        branches = schema.get("anyOf") or schema.get("oneOf")
        if branches:
            return self._make({**without_branches(schema), **flatten(branches[0], root)}, root, seed, depth)
        match kind_of(schema):
            case "object":
                return self._object(schema, root, seed, depth)
            case "array":
                return self._array(schema, root, seed, depth)
            case "integer" | "number" as kind:
                return number(schema, seed, whole=kind == "integer")
            case "boolean":
                return seed % 2 == 0
            case "null":
                return None
            case _:
                return self._string(schema, seed)

    def _object(self, schema: Mapping[str, Any], root: Mapping[str, Any], seed: int, depth: int) -> dict[str, Any]:
        properties = schema.get("properties") or {}
        required = schema.get("required") or []
        names = [name for name in required if name in properties]
        if not (self.only_required and names) and depth < MAX_DEPTH:
            names = list(properties)
        return {name: self._make(properties[name], root, seed, depth + 1) for name in names}

    def _array(self, schema: Mapping[str, Any], root: Mapping[str, Any], seed: int, depth: int) -> list[Any]:
        least = schema.get("minItems", 0)
        count = min(max(least, 1), schema.get("maxItems", least + 1)) if depth < MAX_DEPTH else least
        fixed = schema.get("prefixItems") or []
        items = [*fixed, *[schema.get("items", {})] * max(0, count - len(fixed))]
        return [self._make(item, root, seed + index, depth + 1) for index, item in enumerate(items)]

    def _string(self, schema: Mapping[str, Any], seed: int) -> str:
        shape = _FORMATS.get(schema.get("format", ""))
        text = shape.format(day=seed % 28 + 1) if shape else self.word(seed)
        if len(text) < schema.get("minLength", 0):
            text += "." * (schema["minLength"] - len(text))
        return text[: schema["maxLength"]] if "maxLength" in schema else text


def flatten(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with references followed and `allOf` merged. Raises ValueError for an unresolvable reference."""
    merged = dict(schema) if isinstance(schema, Mapping) else {}
    hops = 0
    while "$ref" in merged:
        reference = merged.pop("$ref")
        merged = {**resolve(reference, root), **merged}
        hops += 1
        if hops > 32:
            raise ValueError(f"$ref {reference!r} refers to itself")
    for part in merged.pop("allOf", ()):
        part = flatten(part, root)
        properties = {**merged.get("properties", {}), **part.get("properties", {})}
        required = [*merged.get("required", ()), *part.get("required", ())]
        merged = {**merged, **part, "properties": properties, "required": required}
    return merged


def resolve(reference: object, root: Mapping[str, Any]) -> Mapping[str, Any]:
    node: Any = root
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise ValueError(f"$ref {reference!r} is not inside the schema")
    for step in reference[1:].strip("/").split("/"):
        if step:
            node = node.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(node, Mapping) else None
    if not isinstance(node, Mapping):
        raise ValueError(f"$ref {reference!r} cannot be resolved")
    return node


def without_branches(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name not in ("anyOf", "oneOf")}


def kind_of(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0] if kind else "string"
    if kind is None:
        kind = "object" if "properties" in schema else "array" if "items" in schema else "string"
    return str(kind)


def number(schema: Mapping[str, Any], seed: int, *, whole: bool) -> int | float:
    step = schema.get("multipleOf") or 1
    low = schema.get("minimum")
    if low is None and "exclusiveMinimum" in schema:
        low = schema["exclusiveMinimum"] + step
    high = schema.get("maximum")
    if high is None and "exclusiveMaximum" in schema:
        high = schema["exclusiveMaximum"] - step
    if low is None:
        low = 0 if high is None else min(0, high)
    if high is not None and low > high and not whole:
        return float(low + high) / 2
    low = -(-low // step) * step if step != 1 or whole else low
    span = 100 if high is None else max(0, int((high - low) // step))
    value = low + step * (seed % (span + 1))
    return int(value) if whole else float(value)
