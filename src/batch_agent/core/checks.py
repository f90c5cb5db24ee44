"""Whether what somebody gave is of the kind that was asked for."""

import math
from os import PathLike, fsencode
from pathlib import Path
from typing import Any, TypeGuard

from .errors import SpecError

MOST = 2**53
"""What JSON, Lua and SQLite all keep exactly."""
LONGEST = 1e9
"""Seconds, some 30 years: more than that no event loop can wait."""


def at_least(name: str, value: Any, least: int) -> None:
    if not is_whole(value) or value < least:
        raise SpecError(f"{name} must be a whole number of at least {least}; got {value!r}.")
    if value > MOST:
        raise SpecError(f"{name} must be a whole number of at most {MOST}; got {value!r}.")


def seconds(name: str, value: Any, *, least: float = 0.0, or_none: bool = False) -> None:
    """More than 0 of them, or at least `least` where that is given."""
    if value is None and or_none:
        return
    none = ", or None" if or_none else ""
    if not is_number(value) or (value < least if least else value <= 0):
        wanted = f"at least {least:g} second" if least else "more than 0 seconds"
        raise SpecError(f"{name} must be {wanted}{none}; got {value!r}.")
    if value > LONGEST:
        raise SpecError(f"{name} must be at most {LONGEST:,.0f} seconds{none}; got {value!r}.")


def port(name: str, value: Any, *, least: int = 0) -> None:
    """Raises SpecError. Some systems take a port that is too large modulo 65536."""
    if not is_whole(value) or not least <= value <= 65535:
        raise SpecError(f"{name} must be a whole number from {least} to 65535; got {value!r}.")


def text_or_none(name: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise SpecError(f"{name} must be a text or None; got {value!r}.")
    whole_characters(name, value)


def whole_characters(name: str, text: str) -> None:
    """Half of a surrogate pair, from bytes that were read as another encoding, cannot be sent as it is."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SpecError(f"{name} must be a text of whole characters; {text[error.start]!r} is half of one.") from None


def path(name: str, place: Any) -> Path:
    """Raises SpecError for what no file system takes."""
    try:
        if isinstance(place, str | PathLike) and str(place) and b"\0" not in fsencode(str(place)):
            return Path(place)
    except UnicodeEncodeError:
        pass
    raise SpecError(f"{name} must be a path; got {place!r}.")


def flags(options: Any, *names: str) -> None:
    """Fields of `options` that are True or False; a text such as "no" would count as True."""
    for name in names:
        if not isinstance(getattr(options, name), bool):
            raise SpecError(f"{name} must be True or False; got {getattr(options, name)!r}.")


def is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> TypeGuard[int | float]:
    """Neither NaN nor infinite: comparisons with the one are always false, and no clock counts to the other."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return isinstance(value, int) or math.isfinite(value)
