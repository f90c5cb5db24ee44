"""Tool-call arguments as JSON: parsing and comparison."""

from typing import Any

from ...core.json import loads


def as_object(arguments: str) -> dict[str, Any]:
    """Parses arguments for APIs in which they are an object. Invalid ones are wrapped as {"malformed": arguments}."""
    if not arguments.strip():
        return {}
    try:
        value = loads(arguments)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"malformed": arguments}


def is_same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal: the order of keys does not matter, and 1.0 equals 1, but not true."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)
