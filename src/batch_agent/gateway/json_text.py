"""JSON as programs write it."""

import json
from typing import Any

import orjson


def loads(data: bytes | str) -> Any:
    """Raises ValueError, RecursionError. Half of a surrogate pair, as JavaScript has it where a text was cut, is
    replaced: nobody else could say it again."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        value = json.loads(data, parse_constant=_refuse)
        return orjson.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))


def dumps(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # half of a surrogate pair, or a number of many digits
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def as_object(arguments: str) -> dict[str, Any]:
    """The arguments of a call, for words in which they are an object. What is none is shown as it is."""
    if not arguments.strip():
        return {}
    try:
        value = loads(arguments)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"malformed": arguments}


def is_same(one: Any, other: Any) -> bool:
    """Whether two values say the same: the order of keys is no part of that, and 1.0 is 1, but not true."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
