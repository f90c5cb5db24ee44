"""Cache of tool results in memory, and the outcome of one execution that it stores."""

from collections import OrderedDict
from collections.abc import Callable, Hashable

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
        self._max_bytes = max_bytes
        self._clock = clock
        self._bytes = 0
        self._entries: OrderedDict[Hashable, ToolOutcome] = OrderedDict()
        """The least recently used one first."""

    def get(self, key: Hashable) -> ToolOutcome | None:
        outcome = self._entries.get(key)
        if outcome is None:
            return None
        if outcome.expires <= self._clock():
            self._remove(key)
            return None
        self._entries.move_to_end(key)
        return outcome

    def put(self, key: Hashable, outcome: ToolOutcome) -> None:
        """Stores an outcome, unless it is larger than the whole cache or older than the stored one."""
        stored = self.get(key)
        if _size(outcome) > self._max_bytes or (stored is not None and stored.order >= outcome.order):
            return
        if stored is not None:
            self._remove(key)
        self._entries[key] = outcome
        self._bytes += _size(outcome)
        while self._bytes > self._max_bytes:
            self._remove(next(iter(self._entries)))

    def _remove(self, key: Hashable) -> None:
        self._bytes -= _size(self._entries.pop(key))


def _size(outcome: ToolOutcome) -> int:
    return len(outcome.content) * 2 + _OVERHEAD_BYTES
