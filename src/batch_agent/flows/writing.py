"""Values as a model reads them."""

import json
from typing import Any

import orjson

from ..plan.plain import plain
from ..plan.template import sendable


def written(value: Any) -> str:
    """Its JSON. Raises ValueError for what has no end, and whatever an object raises that no text can be made of."""
    try:
        made = plain(value)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    try:
        return orjson.dumps(made).decode()
    except TypeError:  # what orjson refuses: long numbers, lone surrogates
        return sendable(json.dumps(made, ensure_ascii=False, separators=(",", ":")))
