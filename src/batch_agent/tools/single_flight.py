"""Single-flight: calls that are the same and overlap are one execution. It belongs to nobody who waits for it."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Hashable
from typing import Any

from ..core.messages import ToolSource
from .cache import ToolOutcome

Found = tuple[ToolOutcome, ToolSource]
"""What a call gives, and where that is from."""

Execute = Callable[["InFlightCall"], Coroutine[Any, Any, ToolOutcome]]

_WOKEN_AT_ONCE = 8


class InFlightCall:
    """One execution under way, and who waits for it. Each has a time of its own."""

    __slots__ = ("_flights", "_joined", "_key", "_overdue", "_task", "_waiters", "_waiting", "order", "version")

    def __init__(
        self, flights: "SingleFlight", key: Hashable, order: int, version: Hashable, overdue: str = ""
    ) -> None:
        """`overdue`: what those are told whose time is over."""
        self._flights = flights
        self._key = key
        self._task: asyncio.Task[ToolOutcome]
        self._waiting = 0
        self._waiters: list[asyncio.Future[ToolOutcome | None]] = []
        """Also those that have left meanwhile, which are done."""
        self._joined: list[float] = []
        self._overdue = overdue
        self.order = order
        self.version = version

    def begin(self, execution: Coroutine[Any, Any, ToolOutcome]) -> "asyncio.Task[ToolOutcome]":
        self._task = asyncio.get_running_loop().create_task(execution)
        self._task.add_done_callback(self.over)
        return self._task

    async def found(self, source: ToolSource) -> Found:
        """The outcome, and `source`. Who is cancelled leaves it to the others; the last one to leave calls it off."""
        if self._task.done():
            return self._task.result(), source
        loop = self._task.get_loop()
        waiter = loop.create_future()
        self._waiters.append(waiter)
        self._joined.append(loop.time())
        self._waiting += 1
        try:
            late = await waiter
        finally:
            self._waiting -= 1
            if self._waiting == 0:
                self._task.cancel()  # does nothing to one that is done
        return self._task.result() if late is None else late, source

    def extend(self, due: float, limit: float) -> float | None:
        """The execution was due at `due`, `limit` seconds after it began. Those who came before that are told so, and
        the others have as long as it takes them: gives the next time. None: the time of all is over."""
        now = self._task.get_loop().time()
        times = [max(due, joined + limit) for joined in self._joined]
        left = [time for waiter, time in zip(self._waiters, times, strict=True) if time > now and not waiter.done()]
        if not left:
            return None
        for waiter, time in zip(self._waiters, times, strict=True):
            if time <= now and not waiter.done():
                waiter.set_result(ToolOutcome(self._overdue, True, self.order, limit, self.version, timed_out=True))
        return min(left)

    def over(self, task: "asyncio.Task[ToolOutcome]") -> None:
        """Hundreds may wait for it, and each has something to do then: the loop has other things to do in between."""
        self._flights.forget(self._key, self, task)
        _wake(self._task.get_loop(), deque(self._waiters))

    @property
    def is_open(self) -> bool:
        """Whether one more may wait for it."""
        return not self._task.done() and not self._task.cancelling()


def _wake(loop: asyncio.AbstractEventLoop, waiting: "deque[asyncio.Future[ToolOutcome | None]]") -> None:
    for _ in range(min(_WOKEN_AT_ONCE, len(waiting))):
        waiter = waiting.popleft()
        if not waiter.done():
            waiter.set_result(None)
    if waiting:
        loop.call_soon(_wake, loop, waiting)


class SingleFlight:
    """What is under way, by key. Executions never raise: they give outcomes."""

    def __init__(self) -> None:
        self._open: dict[Hashable, InFlightCall] = {}
        self._tasks: set[asyncio.Task[ToolOutcome]] = set()

    def find(self, key: Hashable) -> InFlightCall | None:
        flight = self._open.get(key)
        return flight if flight is not None and flight.is_open else None

    def start(self, key: Hashable, order: int, version: Hashable, execute: Execute, overdue: str = "") -> InFlightCall:
        """Takes the place of one that is under way and no longer good for newcomers."""
        flight = self._open[key] = InFlightCall(self, key, order, version, overdue)
        self._tasks.add(flight.begin(execute(flight)))
        return flight

    async def aclose(self) -> None:
        await cancel_all(self._tasks)

    def forget(self, key: Hashable, flight: InFlightCall, task: "asyncio.Task[ToolOutcome]") -> None:
        self._tasks.discard(task)
        if self._open.get(key) is flight:
            del self._open[key]


async def cancel_all(tasks: "Collection[asyncio.Task[Any]]") -> None:
    """Returns when all are gone. A task that takes its time to be cancelled is waited for."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(set(tasks))
