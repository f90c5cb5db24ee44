"""Seam of tools to the other processes of a run: calls that one of them makes for all, and limits that they keep
together."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from .fast_dataclass import dataclass
from .images import ImageRef
from .messages import ToolSource


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """Outcome of one execution of a tool call."""

    content: str
    is_error: bool
    seconds: float
    """Duration of the execution."""
    ttl: float
    """Seconds for which later callers may get it; 0: only callers that are waiting already."""
    timed_out: bool = False
    """The execution timed out. Other processes do not get this outcome: they have timeouts of their own."""
    images: tuple[ImageRef, ...] = ()
    """Images in files, which other processes read too."""


@dataclass(frozen=True, slots=True)
class SharedRank:
    """Place of a reference in the order that all processes of a run use."""

    rank: int
    is_elsewhere: bool
    """Another process asked for it before."""


class SharedCalls(Protocol):
    """Tool calls that are made once for all processes of a run, and rate limits that they keep together. If the
    coordinator cannot be reached, each process works on its own: nothing here fails because of that."""

    async def call(self, name: str, make: Callable[[], Awaitable[CallOutcome]]) -> tuple[CallOutcome, ToolSource]:
        """Outcome of the call of this name: made here, by another process while this one waited, or earlier. The
        execution may have begun at any time before. Raises what `make` raises."""
        ...

    async def rank(self, heading: str) -> SharedRank | None:
        """Rank of a reference, the same in all processes. None if the coordinator cannot be reached."""
        ...

    async def reserve_rate(self, name: str, *, interval: float, ahead: float) -> float | None:
        """As `CallTable.reserve_rate`; None if the coordinator cannot be reached: the caller keeps a rate of its
        own."""
        ...

    async def acquire_permit(self, name: str, limit: int) -> Callable[[], None] | None:
        """Waits until fewer than `limit` processes execute the tool of this name, each counted as often as it does.
        Returns what to call at the end of the execution; None if the coordinator cannot be reached."""
        ...
