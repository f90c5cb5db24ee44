"""JSON: orjson, and the standard library for what orjson refuses.

orjson refuses integers of more than 64 bits and lone surrogates, which file names and texts that were cut in the middle
of a character hold."""

import json
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Self

import orjson

Default = Callable[[Any], Any]
_TOO_LARGE = 2.0**63
"""From here on, a float may be an integer that orjson could not hold."""
_FLOAT_DIGITS = sys.float_info.dig
"""A float holds every number with so many digits."""


class WrittenFloat(float):
    """Float that was written with more digits than a float has."""

    __slots__ = ("digits",)

    def __new__(cls, digits: str) -> Self:
        number = super().__new__(cls, digits)
        number.digits = digits
        return number

    digits: str


def written_float(digits: str) -> float:
    """The number, as `parse_float` of the standard library's decoder; a WrittenFloat if a float cannot hold it."""
    value = float(digits)
    is_exact = len(digits) <= _FLOAT_DIGITS or Decimal(repr(value)) == Decimal(digits)
    return value if is_exact else WrittenFloat(digits)


WRITTEN_JSON = json.JSONDecoder(strict=False, parse_float=written_float)
"""Reads what a model wrote: also control characters in strings, and floats with all their digits."""


def dumps(value: Any) -> bytes:
    """Compact JSON of plain data. A lone surrogate becomes a question mark. Raises TypeError for other values, and
    ValueError or RecursionError for values that contain themselves."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def dumps_ascii(value: Any) -> str:
    """JSON of plain data as text that can be encoded and read again: what orjson refuses is escaped."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(value)


def dumps_any(value: Any, default: Default) -> str:
    """JSON of any value: `default` converts the types that JSON does not have. Lone surrogates stay in the text; see
    `replace_surrogates`."""
    try:
        return orjson.dumps(value, default=default, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:
        return json.dumps(value, default=default, ensure_ascii=False, separators=(",", ":"))


def loads(
    data: bytes | str,
    *,
    parse_constant: Callable[[str], Any] | None = None,
    parse_float: Callable[[str], Any] | None = None,
) -> Any:
    """Reads JSON; a lone surrogate becomes U+FFFD. `parse_constant` is called for NaN and Infinity, which are refused
    without it, `parse_float` for floating-point numbers where orjson refuses the document. Raises ValueError, and
    RecursionError for deep nesting."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        value = json.loads(data, parse_constant=parse_constant or _refuse_constant, parse_float=parse_float)
        return orjson.loads(replace_surrogates(json.dumps(value, ensure_ascii=False)))


def loads_exact(data: bytes | str) -> Any:
    """Reads JSON as orjson does, with integers of any size, which orjson makes floats beyond 64 bits. Raises
    orjson.JSONDecodeError."""
    value = orjson.loads(data)
    return json.loads(data) if _has_large_float(value) else value


def _has_large_float(value: Any) -> bool:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if type(each) is float and abs(each) >= _TOO_LARGE:
            return True
        if type(each) is dict:
            waiting.extend(each.values())
        elif type(each) is list:
            waiting.extend(each)
    return False


def replace_surrogates(text: str) -> str:
    """The text with U+FFFD for each lone surrogate, which has no encoding in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
