"""JSON parser for responses, which repairs common mistakes of servers."""

import math
from typing import Any

import orjson

from ...core import json
from ...core.validation import MAX_NESTING, is_too_deep

_ORJSON_LEVELS = 254
"""Levels that orjson writes."""


class BadJson(ValueError):
    """The data is not JSON that can be read; the message says why."""


def loads(data: bytes) -> Any:
    """Parses JSON. A byte order mark is skipped, a lone surrogate becomes U+FFFD, NaN and Infinity become null. Raises
    BadJson."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        value = _repaired(data)
    # Each level has two brackets, so the depth is computed for few responses only: those with log probabilities.
    if len(data) > 2 * MAX_NESTING and data.count(b"{") + data.count(b"[") > MAX_NESTING and not _is_shallow(value):
        raise BadJson(f"nested more than {MAX_NESTING} levels deep")
    return value


def _is_shallow(value: Any) -> bool:
    """Whether a value has at most MAX_NESTING levels. orjson refuses to write more than its own limit, and says so in a
    tenth of the time that it takes to walk through the value."""
    nested = value
    for _ in range(_ORJSON_LEVELS - MAX_NESTING):
        nested = [nested]
    try:
        orjson.dumps(nested)
    except TypeError:  # also for integers of more than 64 bits
        return not is_too_deep(value)
    return True


def _repaired(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8-sig"), parse_constant=_number, parse_float=_number)
    except RecursionError as error:
        raise BadJson("nested too deeply") from error
    except ValueError as error:
        raise BadJson(str(error)) from error


def _number(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None
