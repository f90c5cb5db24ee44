"""When two calls are the same call."""

from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from hashlib import blake2b
from pathlib import PurePath
from typing import Any
from uuid import UUID

import orjson

from ..core.schema import is_model, is_secret
from ..plan.fingerprint import canonical

_PLAIN = (str, int, float, bool, type(None))
_SHOWN_IN_FULL = (bytes, date, time, timedelta, Decimal, UUID, PurePath, complex)
_LEFT_OUT = {"left out": True}


class _Opaque(Exception):
    """An object of a kind that may hide what is in it."""


def call_key(tool: str, arguments: dict[str, Any], text: str) -> tuple[str, bytes]:
    """Equal for calls that must give the same: arguments as the function gets them, with defaults, in any order.
    1 and 1.0 are not the same, nor is a text that only looks the same. An object whose insides are not known here is
    told apart by what the model wrote (`text`). Raises ValueError for what has no end."""
    told = {name: value if type(value) in _PLAIN else _told(name, value, text) for name, value in arguments.items()}
    return tool, blake2b(canonical(told), digest_size=16).digest()


def same_arguments(one: str, other: str) -> bool:
    """Whether two texts of arguments say the same."""
    if one == other:
        return True
    first, second = _written(one), _written(other)
    return first is not None and second is not None and canonical(first) == canonical(second)


def _told(name: str, value: Any, text: str) -> Any:
    try:
        return _identity(value)
    except _Opaque:
        return (_written(text) or {}).get(name, _LEFT_OUT)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _identity(value: Any) -> Any:
    """What a value is, with its type where JSON would forget it. Raises _Opaque."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind in (list, tuple):
        return [_identity(part) for part in value]
    if kind is dict:
        return {"dict": sorted(([_identity(key), _identity(part)] for key, part in value.items()), key=repr)}
    inside = _inside(value)
    return {kind.__qualname__: [_identity(part) for part in inside] if isinstance(inside, list) else inside}


def _inside(value: Any) -> Any:
    match value:
        case _ if is_secret(value):
            return repr(value.get_secret_value())
        case Enum():
            return value.name
        case _ if is_model(value):
            return [[name, getattr(value, name)] for name in type(value).model_fields] + [value.model_extra or {}]
        case set() | frozenset():
            return sorted(value, key=repr)
        case _ if isinstance(value, _SHOWN_IN_FULL):
            return repr(value)
        case _ if is_dataclass(value):
            return [[field.name, getattr(value, field.name)] for field in fields(value)]
    raise _Opaque


def _written(text: str) -> dict[str, Any] | None:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None
