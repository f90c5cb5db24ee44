"""Single-flight: calls that are the same and overlap are one execution. It belongs to nobody who waits for it."""

import asyncio
from collections import deque
from collections.abc import Collection, Coroutine, Hashable
from typing import Any

from ..core.messages import ToolSource
from .cache import Outcome

Found = tuple[Outcome, ToolSource]
"""What a call gives, and where that is from."""

_WOKEN_AT_ONCE = 8


class Flight:
    """One execution under way, and who waits for it."""

    __slots__ = ("_flights", "_key", "_task", "_waiters", "_waiting", "order", "version")

    def __init__(
        self, flights: "Flights", key: Hashable, task: "asyncio.Task[Outcome]", order: int, version: Hashable
    ) -> None:
        self._flights = flights
        self._key = key
        self._task = task
        self._waiting = 0
        self._waiters: list[asyncio.Future[None]] = []
        """Also those that have left meanwhile, which are done."""
        self.order = order
        self.version = version

    async def found(self, source: ToolSource) -> Found:
        """The outcome, and `source`. Who is cancelled leaves it to the others; the last one to leave calls it off."""
        if self._task.done():
            return self._task.result(), source
        waiter = self._task.get_loop().create_future()
        self._waiters.append(waiter)
        self._waiting += 1
        try:
            await waiter
        finally:
            self._waiting -= 1
            if self._waiting == 0:
                self._task.cancel()  # does nothing to one that is done
        return self._task.result(), source

    def over(self, task: "asyncio.Task[Outcome]") -> None:
        """Hundreds may wait for it, and each has something to do then: the loop has other things to do in between."""
        self._flights.forget(self._key, self, task)
        _wake(self._task.get_loop(), deque(self._waiters))

    @property
    def is_open(self) -> bool:
        """Whether one more may wait for it."""
        return not self._task.done() and not self._task.cancelling()


def _wake(loop: asyncio.AbstractEventLoop, waiting: "deque[asyncio.Future[None]]") -> None:
    for _ in range(min(_WOKEN_AT_ONCE, len(waiting))):
        waiter = waiting.popleft()
        if not waiter.done():
            waiter.set_result(None)
    if waiting:
        loop.call_soon(_wake, loop, waiting)


class Flights:
    """What is under way, by key. Executions never raise: they give outcomes."""

    def __init__(self) -> None:
        self._open: dict[Hashable, Flight] = {}
        self._tasks: set[asyncio.Task[Outcome]] = set()

    def find(self, key: Hashable) -> Flight | None:
        flight = self._open.get(key)
        return flight if flight is not None and flight.is_open else None

    def start(self, key: Hashable, order: int, version: Hashable, execution: Coroutine[Any, Any, Outcome]) -> Flight:
        """Takes the place of one that is under way and no longer good for newcomers."""
        task = asyncio.get_running_loop().create_task(execution)
        flight = self._open[key] = Flight(self, key, task, order, version)
        self._tasks.add(task)
        task.add_done_callback(flight.over)
        return flight

    async def aclose(self) -> None:
        await cancel_all(self._tasks)

    def forget(self, key: Hashable, flight: Flight, task: "asyncio.Task[Outcome]") -> None:
        self._tasks.discard(task)
        if self._open.get(key) is flight:
            del self._open[key]


async def cancel_all(tasks: "Collection[asyncio.Task[Any]]") -> None:
    """Returns when all are gone. A task that takes its time to be cancelled is waited for."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(set(tasks))
