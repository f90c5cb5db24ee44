"""Whether what somebody gave is of the kind that was asked for."""

from typing import Any, TypeGuard

from .errors import SpecError


def at_least(name: str, value: int, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SpecError(f"{name} must be a whole number of at least {least}; got {value!r}.")


def text_or_none(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, str):
        raise SpecError(f"{name} must be a text or None; got {value!r}.")


def is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
