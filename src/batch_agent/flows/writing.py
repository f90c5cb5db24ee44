"""Values as a model reads them: JSON, and the same text for the same value in every process."""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import orjson
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from ..plan.template import sendable


def written(value: Any) -> str:
    """Raises ValueError for what has no end, and whatever an object raises that cannot be made into a text."""
    try:
        plain = _plain(value)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    try:
        return orjson.dumps(plain).decode()
    except TypeError:  # what orjson refuses: long numbers, lone surrogates
        return sendable(json.dumps(plain, ensure_ascii=False, separators=(",", ":")))


def _plain(value: Any) -> Any:
    if value is None or type(value) in (str, int, bool):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, BaseModel):
        return _plain(value.model_dump())
    if isinstance(value, Mapping):
        return {_key(key): _plain(part) for key, part in value.items()}
    if isinstance(value, set | frozenset):  # whose order is another in every process
        return sorted(map(_plain, value), key=repr)
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return _leaf(value)


def _key(key: Any) -> str:
    return key if type(key) is str else str(_leaf(key))


def _leaf(value: Any) -> Any:
    """Dates, numbers of other kinds, bytes, enums: as Pydantic writes them in JSON."""
    try:
        return to_jsonable_python(value, fallback=str)
    except ValueError:  # bytes that are no text
        return str(value)
