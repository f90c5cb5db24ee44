"""Concurrency limit of one tool. A thread counts until its function has returned, also after its call timed out."""

import asyncio
from collections import deque
from contextlib import suppress

from .texts import ToolTimeout


class Places:
    """At most `most` executions at once, in the order in which they ask."""

    def __init__(self, name: str, most: int, patience: float | None) -> None:
        """`patience`: seconds after which calls that wait fail, if all places are held by calls that timed out."""
        self._name = name
        self._most = most
        self._patience = patience
        self._free = most
        self._late = 0
        """Places of threads whose calls have ended."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def take(self) -> "Place":
        """Raises ToolTimeout."""
        if self._free:
            self._free -= 1
            return Place(self)
        granted = asyncio.get_running_loop().create_future()
        self._waiting.append(granted)
        self._watch()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                self.give_back()
            raise
        finally:
            with suppress(ValueError):
                self._waiting.remove(granted)
        return Place(self)

    def give_back(self) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return
        self._free += 1

    def late(self, change: int) -> None:
        """One more, or one less, of the threads goes on without its call."""
        self._late += change
        self._watch()

    def _watch(self) -> None:
        if self._late < self._most:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        elif self._timer is None and self._waiting and self._patience is not None:
            self._timer = asyncio.get_running_loop().call_later(self._patience, self._refuse)

    def _refuse(self) -> None:
        self._timer = None
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            if not each.done():
                each.set_exception(
                    ToolTimeout(
                        f"{self._name} was not called: all {self._most} of its places (max_concurrent) are held by "
                        "calls that timed out and still run."
                    )
                )


class Place:
    """Held by a call, and by the thread that runs for it, until both are done."""

    __slots__ = ("_is_late", "_places", "_runs")

    def __init__(self, places: Places) -> None:
        self._places = places
        self._runs = False
        self._is_late = False

    def leave(self) -> None:
        """The call is over."""
        if self._runs:
            self._is_late = True
            self._places.late(1)
        else:
            self._places.give_back()

    def began(self) -> None:
        """A thread runs for the call."""
        self._runs = True

    def ended(self) -> None:
        self._runs = False
        if self._is_late:
            self._places.late(-1)
            self._places.give_back()
