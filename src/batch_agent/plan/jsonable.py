"""Values as JSON has them: the same for the same value in every process."""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from ..core.schema import is_model


def to_jsonable(value: Any) -> Any:
    """Raises RecursionError for what has no end, and whatever an object raises that cannot be made into a text."""
    if value is None or type(value) in (str, int, bool):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if is_model(value):
        return to_jsonable(value.model_dump())
    if isinstance(value, Mapping):
        return {_key(key): to_jsonable(part) for key, part in value.items()}
    if isinstance(value, set | frozenset):  # whose order is another in every process
        return sorted(map(to_jsonable, value), key=repr)
    if isinstance(value, list | tuple):
        return [to_jsonable(part) for part in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_jsonable(getattr(value, field.name)) for field in fields(value)}
    return _leaf(value)


def _key(key: Any) -> str:
    return key if type(key) is str else str(_leaf(key))


def _leaf(value: Any) -> Any:
    """Dates, numbers of other kinds, bytes, enums: as Pydantic writes them in JSON."""
    from pydantic_core import to_jsonable_python  # rarely needed

    try:
        return to_jsonable_python(value, fallback=str)
    except ValueError:  # bytes that are no text
        return str(value)
