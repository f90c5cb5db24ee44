"""What tools give and raise, as texts for a model."""

from typing import Any


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
    from pydantic_core import PydanticSerializationError, to_json

    try:
        return to_json(value, fallback=str).decode()
    except (PydanticSerializationError, ValueError):
        return str(value)


def describe_error(error: BaseException) -> str:
    """Its type and its message; a traceback says nothing to a model."""
    if isinstance(error, Worded):
        return str(error)
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - the error is the tool's own, and so is its __str__
        return type(error).__name__


def sound(text: str) -> str:
    """`text` without what no wire and no store can carry: halves of surrogate pairs, as odd file names give them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text
