"""JSON as servers send it, with what is wrong with some of it put right."""

import math
from typing import Any

import orjson

from ...core import json
from ...core.validation import DEEPEST, is_too_deep


class BadJson(ValueError):
    """It cannot be read; the message says why."""


def loads(data: bytes) -> Any:
    """Raises BadJson. A byte order mark is passed over, half of a surrogate pair becomes U+FFFD, NaN and Infinity
    become null."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        value = _repaired(data)
    # Each level has two brackets, so this is looked into for few answers.
    if len(data) > 2 * DEEPEST and data.count(b"{") + data.count(b"[") > DEEPEST and is_too_deep(value):
        raise BadJson(f"nested more than {DEEPEST} levels deep")
    return value


def _repaired(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8-sig"), parse_constant=_number, parse_float=_number)
    except RecursionError as error:
        raise BadJson("nested too deep") from error
    except ValueError as error:
        raise BadJson(str(error)) from error


def _number(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None
