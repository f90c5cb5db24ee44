"""Keys of tool calls: equal for calls that must give the same result."""

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
_IDENTIFIED_BY_REPR = (bytes, date, time, timedelta, Decimal, UUID, PurePath, complex)
_OMITTED = {"left out": True}


class _Opaque(Exception):
    """A value whose contents are not known, so that its identity is not either."""


def call_key(tool: str, arguments: dict[str, Any], text: str) -> tuple[str, bytes]:
    """Key of a call by its parsed arguments, with defaults, in any order. 1 and 1.0 differ, and so do strings that only
    look the same. An object whose contents are not known is identified by what the model wrote (`text`). Raises
    ValueError for values that contain themselves."""
    values = {
        name: value if type(value) in _PLAIN else _argument(name, value, text) for name, value in arguments.items()
    }
    return tool, blake2b(canonical(values), digest_size=16).digest()


def same_arguments(one: str, other: str) -> bool:
    """Whether two JSON texts hold equal arguments."""
    if one == other:
        return True
    first, second = _parsed(one), _parsed(other)
    return first is not None and second is not None and canonical(first) == canonical(second)


def _argument(name: str, value: Any, text: str) -> Any:
    try:
        return _identity(value)
    except _Opaque:
        return (_parsed(text) or {}).get(name, _OMITTED)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _identity(value: Any) -> Any:
    """The value as JSON, with its type where JSON would lose it. Raises _Opaque."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind in (list, tuple):
        return [_identity(part) for part in value]
    if kind is dict:
        return {"dict": sorted(([_identity(key), _identity(part)] for key, part in value.items()), key=repr)}
    inside = _contents(value)
    return {kind.__qualname__: [_identity(part) for part in inside] if isinstance(inside, list) else inside}


def _contents(value: Any) -> Any:
    match value:
        case _ if is_secret(value):
            return repr(value.get_secret_value())
        case Enum():
            return value.name
        case _ if is_model(value):
            return [[name, getattr(value, name)] for name in type(value).model_fields] + [value.model_extra or {}]
        case set() | frozenset():
            return sorted(value, key=repr)
        case _ if isinstance(value, _IDENTIFIED_BY_REPR):
            return repr(value)
        case _ if is_dataclass(value):
            return [[field.name, getattr(value, field.name)] for field in fields(value)]
    raise _Opaque


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None
