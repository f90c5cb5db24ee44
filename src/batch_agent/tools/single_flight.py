"""Single-flight: identical calls that overlap share one execution, which no single waiter owns."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Hashable
from typing import Any

from ..aio import cancel_all
from ..core.messages import ToolSource
from .cache import ToolOutcome

SourcedOutcome = tuple[ToolOutcome, ToolSource]
"""The outcome of a call, and whether it was executed, shared or cached."""

Execute = Callable[["InFlightCall"], Coroutine[Any, Any, ToolOutcome]]

_WAKE_BATCH = 8


class InFlightCall:
    """One execution in progress and its waiters. Each waiter has a timeout of its own."""

    __slots__ = (
        "_flights",
        "_join_times",
        "_key",
        "_task",
        "_timeout_message",
        "_waiter_count",
        "_waiters",
        "order",
        "version",
    )

    def __init__(
        self, flights: "SingleFlight", key: Hashable, order: int, version: Hashable, timeout_message: str = ""
    ) -> None:
        """`timeout_message`: the content of the outcome for waiters that time out."""
        self._flights = flights
        self._key = key
        self._task: asyncio.Task[ToolOutcome]
        self._waiter_count = 0
        self._waiters: list[asyncio.Future[ToolOutcome | None]] = []
        """Includes waiters that have left in the meantime; those are done."""
        self._join_times: list[float] = []
        self._timeout_message = timeout_message
        self.order = order
        self.version = version

    def start(self, execution: Coroutine[Any, Any, ToolOutcome]) -> "asyncio.Task[ToolOutcome]":
        self._task = asyncio.get_running_loop().create_task(execution)
        self._task.add_done_callback(self._on_done)
        return self._task

    async def wait(self, source: ToolSource) -> SourcedOutcome:
        """The outcome, paired with `source`. A cancelled waiter leaves the execution to the others; the last waiter to
        leave cancels it."""
        if self._task.done():
            return self._task.result(), source
        loop = self._task.get_loop()
        waiter = loop.create_future()
        self._waiters.append(waiter)
        self._join_times.append(loop.time())
        self._waiter_count += 1
        try:
            timed_out = await waiter
        finally:
            self._waiter_count -= 1
            if self._waiter_count == 0:
                self._task.cancel()  # has no effect on a task that is done
        return self._task.result() if timed_out is None else timed_out, source

    def extend(self, due: float, limit: float) -> float | None:
        """Called when the execution is due, at `due`, `limit` seconds after it began. Waiters that joined in time for
        that get a timeout; those that joined later keep the rest of their own `limit`. Returns the next due time, or
        None if no waiter has time left."""
        now = self._task.get_loop().time()
        times = [max(due, joined + limit) for joined in self._join_times]
        left = [time for waiter, time in zip(self._waiters, times, strict=True) if time > now and not waiter.done()]
        if not left:
            return None
        for waiter, time in zip(self._waiters, times, strict=True):
            if time <= now and not waiter.done():
                waiter.set_result(
                    ToolOutcome(self._timeout_message, True, self.order, limit, self.version, timed_out=True)
                )
        return min(left)

    def _on_done(self, task: "asyncio.Task[ToolOutcome]") -> None:
        """Wakes waiters in batches: there may be hundreds, and the loop has other work in between."""
        self._flights.remove(self._key, self, task)
        _wake(self._task.get_loop(), deque(self._waiters))

    @property
    def is_open(self) -> bool:
        """Whether another call may wait for it."""
        return not self._task.done() and not self._task.cancelling()


def _wake(loop: asyncio.AbstractEventLoop, waiting: "deque[asyncio.Future[ToolOutcome | None]]") -> None:
    for _ in range(min(_WAKE_BATCH, len(waiting))):
        waiter = waiting.popleft()
        if not waiter.done():
            waiter.set_result(None)
    if waiting:
        loop.call_soon(_wake, loop, waiting)


class SingleFlight:
    """Executions in progress, by key. They never raise: they return outcomes."""

    def __init__(self) -> None:
        self._open: dict[Hashable, InFlightCall] = {}
        self._tasks: set[asyncio.Task[ToolOutcome]] = set()

    def find(self, key: Hashable) -> InFlightCall | None:
        flight = self._open.get(key)
        return flight if flight is not None and flight.is_open else None

    def start(
        self, key: Hashable, order: int, version: Hashable, execute: Execute, timeout_message: str = ""
    ) -> InFlightCall:
        """Starts an execution. It replaces one in progress under the same key that new calls may not join."""
        flight = self._open[key] = InFlightCall(self, key, order, version, timeout_message)
        self._tasks.add(flight.start(execute(flight)))
        return flight

    async def aclose(self) -> None:
        await cancel_all(self._tasks)

    def remove(self, key: Hashable, flight: InFlightCall, task: "asyncio.Task[ToolOutcome]") -> None:
        self._tasks.discard(task)
        if self._open.get(key) is flight:
            del self._open[key]
