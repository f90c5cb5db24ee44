"""Rows that are counted before they are read."""

from collections.abc import Callable, Iterator
from typing import Any

from ..core.quick import dataclass

_MOST_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class Counted:
    """Can be read several times, each time from the first row on."""

    count: int
    begin: Callable[[], Iterator[Any]]

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        return self.begin()

    def kept(self) -> "list[Any] | Counted":
        """All of them, so that they can be asked in the best order; very many, one by one."""
        return list(self) if self.count <= _MOST_ROWS else self
