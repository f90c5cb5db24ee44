"""What tools give and raise, as texts for a model."""

import json
from collections.abc import Mapping
from typing import Any

from .tables import as_csv, as_plain, is_missing, table_of


class Worded(Exception):
    """Its message is all that is to be said."""


class ToolTimeout(Worded):
    """One execution took longer than it may."""


def as_text(value: Any) -> str:
    """Reading the value may run code of the tool's, and block."""
    if isinstance(value, str):
        return value
    if value is None:
        return "done"
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return f"[{len(value)} bytes of binary data]"
    if (table := table_of(value)) is not None:
        return as_csv(table)
    from pydantic_core import PydanticSerializationError, to_json

    try:
        return to_json(value, fallback=as_plain).decode()
    except (PydanticSerializationError, ValueError, TypeError):  # such as bytes that are no text, somewhere inside
        return _by_hand(value)


def _by_hand(value: Any) -> str:
    try:
        return json.dumps(_jsonable(value), ensure_ascii=False)
    except (RecursionError, ValueError):  # it has no end
        return str(value)


def _jsonable(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if is_missing(value):
        return None
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else as_text(key): _jsonable(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_jsonable(part) for part in value]
    if isinstance(value, bytes):
        return as_text(value)
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        return to_jsonable_python(value, fallback=as_plain)
    except (PydanticSerializationError, ValueError, TypeError):
        plain = as_plain(value)
        return plain if isinstance(plain, str) else _jsonable(plain)


def describe_error(error: BaseException) -> str:
    """Its type and its message; a traceback says nothing to a model."""
    if isinstance(error, Worded):
        return str(error)
    try:
        return f"{type(error).__name__}: {error}"
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - the error is the tool's own, and so is its __str__
        return type(error).__name__


def sound(text: str) -> str:
    """`text` without what no wire and no store can carry: halves of surrogate pairs, as odd file names give them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text
