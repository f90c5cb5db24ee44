"""Results that may be given out again."""

from collections.abc import Callable, Hashable

from cachetools import TLRUCache

from ..core.fast_dataclass import dataclass

_OVERHEAD = 512
"""Bytes that an entry takes beside its text: a million empty results are not free."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What one execution gave, to whomever it is given."""

    content: str
    is_error: bool
    order: int
    """When it began to look, among all beginnings and ends of a run's calls: whatever changed later may be missing."""
    seconds: float
    version: Hashable = None
    expires: float = float("inf")
    timed_out: bool = False
    """Its time was over. Another one who asks has a time of its own."""


class ResultCache:
    """The least recently used results go when there is no more room, and each when its time is over."""

    def __init__(self, most_bytes: int, clock: Callable[[], float]) -> None:
        self._entries: TLRUCache[Hashable, ToolOutcome] = TLRUCache(
            most_bytes, ttu=lambda key, outcome, now: outcome.expires, timer=clock, getsizeof=_size
        )

    def get(self, key: Hashable) -> ToolOutcome | None:
        return self._entries.get(key)

    def put(self, key: Hashable, outcome: ToolOutcome) -> None:
        """One that is larger than all the room is not kept, nor one that is older than what is there."""
        kept = self._entries.get(key)
        if _size(outcome) <= self._entries.maxsize and (kept is None or kept.order < outcome.order):
            self._entries[key] = outcome


def _size(outcome: ToolOutcome) -> int:
    return len(outcome.content) * 2 + _OVERHEAD
