"""Cache of tool results in memory, and the outcome of one execution that it stores."""

from collections.abc import Callable, Hashable

from cachetools import TLRUCache

from ..core.fast_dataclass import dataclass
from ..core.images import ImageRef

_OVERHEAD_BYTES = 512
"""Bytes that an entry takes in addition to its text: a million empty results are not free."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What one execution returned, for every call that shares it."""

    content: str
    is_error: bool
    order: int
    """When the execution started, as a sequence number over all starts and ends of a run's calls. The content may not
    reflect writes with a higher number."""
    seconds: float
    version: Hashable = None
    expires: float = float("inf")
    timed_out: bool = False
    """The execution hit its timeout. A call that joined later has a timeout of its own."""
    images: tuple[ImageRef, ...] = ()


class ResultCache:
    """LRU cache, bounded in bytes, whose entries expire individually."""

    def __init__(self, max_bytes: int, clock: Callable[[], float]) -> None:
        self._entries: TLRUCache[Hashable, ToolOutcome] = TLRUCache(
            max_bytes, ttu=lambda key, outcome, now: outcome.expires, timer=clock, getsizeof=_size
        )

    def get(self, key: Hashable) -> ToolOutcome | None:
        return self._entries.get(key)

    def put(self, key: Hashable, outcome: ToolOutcome) -> None:
        """Stores an outcome, unless it is larger than the whole cache or older than the stored one."""
        stored = self._entries.get(key)
        if _size(outcome) <= self._entries.maxsize and (stored is None or stored.order < outcome.order):
            self._entries[key] = outcome


def _size(outcome: ToolOutcome) -> int:
    return len(outcome.content) * 2 + _OVERHEAD_BYTES
