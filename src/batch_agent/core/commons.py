"""What the tools of one process have in common with those of others."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from .messages import ToolSource
from .quick import dataclass


@dataclass(frozen=True, slots=True)
class Made:
    """What one execution of a call came to."""

    content: str
    is_error: bool
    seconds: float
    """That the execution took."""
    good: float
    """Seconds for which it may be given to those who ask from now on; 0: only to those who have asked already."""
    timed_out: bool = False
    """Its time was over. It is given to nobody in other processes, who have times of their own."""


class Commons(Protocol):
    """Calls that are made once for all processes of a run, and rates that they keep together. Where the others cannot
    be reached, each process is for itself: nothing here fails because of them."""

    async def call(self, name: str, make: Callable[[], Awaitable[Made]]) -> tuple[Made, ToolSource]:
        """What the call of this name comes to, made here, or by another process while we waited, or by one before us;
        the execution may have begun at any time before. Raises what `make` raises."""
        ...

    async def turn(self, name: str, *, interval: float, ahead: float) -> float | None:
        """A place in a queue where one may go every `interval` seconds, those first who come within `ahead` seconds of
        their time. Gives the seconds to wait; None: the queue cannot be asked, and one of our own has to do."""
        ...
