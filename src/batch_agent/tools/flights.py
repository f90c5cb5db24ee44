"""Single-flight: calls that are the same and overlap are one execution. It belongs to nobody who waits for it."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Hashable
from typing import Any

from .cache import Outcome


class Flight:
    """One execution under way, and how many wait for it."""

    __slots__ = ("_task", "_waiting", "order", "version")

    def __init__(self, task: "asyncio.Task[Outcome]", order: int, version: Hashable) -> None:
        self._task = task
        self._waiting = 0
        self.order = order
        self.version = version

    async def outcome(self) -> Outcome:
        """Leaving by cancellation leaves it to the others; the last one to leave calls it off."""
        self._waiting += 1
        try:
            return await asyncio.shield(self._task)
        finally:
            self._waiting -= 1
            if self._waiting == 0:
                self._task.cancel()  # does nothing to one that is done

    @property
    def is_open(self) -> bool:
        """Whether one more may wait for it."""
        return not self._task.done() and not self._task.cancelling()


class Flights:
    """What is under way, by key. Executions never raise: they give outcomes."""

    def __init__(self) -> None:
        self._open: dict[Hashable, Flight] = {}
        self._tasks: set[asyncio.Task[Outcome]] = set()

    def find(self, key: Hashable) -> Flight | None:
        flight = self._open.get(key)
        return flight if flight is not None and flight.is_open else None

    def start(
        self, key: Hashable, order: int, version: Hashable, execute: Callable[[], Coroutine[Any, Any, Outcome]]
    ) -> Flight:
        """Takes the place of one that is under way and no longer good for newcomers."""
        task = asyncio.get_running_loop().create_task(execute())
        flight = self._open[key] = Flight(task, order, version)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._over(key, flight, done))
        return flight

    async def aclose(self) -> None:
        await cancel_all(self._tasks)

    def _over(self, key: Hashable, flight: Flight, task: "asyncio.Task[Outcome]") -> None:
        self._tasks.discard(task)
        if self._open.get(key) is flight:
            del self._open[key]


async def cancel_all(tasks: "Collection[asyncio.Task[Any]]") -> None:
    """Returns when all are gone. A task that takes its time to be cancelled is waited for."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(set(tasks))
