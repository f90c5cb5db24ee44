"""Calls under way that must not be done twice."""

import itertools
import secrets
from collections.abc import Iterator
from contextlib import contextmanager


class Places:
    """Where calls under way find what came of them in the server, if they must be repeated."""

    def __init__(self) -> None:
        self._name = secrets.token_hex(8)
        self._made = itertools.count(1)
        self._numbers = itertools.count(1)
        self._free: list[str] = []

    @contextmanager
    def taken(self) -> Iterator[tuple[str, int]]:
        """A place, and the number of the call. A call that was given up may arrive still: its place is not used any
        more."""
        place = self._free.pop() if self._free else f"{self._name}.{next(self._made)}"
        yield place, next(self._numbers)
        self._free.append(place)
