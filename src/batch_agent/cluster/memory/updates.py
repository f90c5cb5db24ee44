"""Update stream in memory."""

import asyncio
import itertools
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from ... import aio
from ...core.coordinator import Completion, Cursor, Updates

_MAX_UPDATES = 20_000


@dataclass(slots=True)
class _Update:
    """One update for `poll`."""

    number: int
    completion: Completion | None = None
    completed_call: str | None = None
    message: bytes | None = None


class MemoryUpdateStream:
    """The most recent updates, by number."""

    def __init__(self) -> None:
        self._updates: deque[_Update] = deque(maxlen=_MAX_UPDATES)
        self._last = 0
        self._changed = asyncio.Event()

    async def position(self, *, completions: bool = True) -> Cursor:
        return (str(self._last),)

    async def poll(self, after: Cursor, *, wait: float) -> Updates:
        deadline, last = aio.now() + wait, int(after[0])
        while self._last <= last and aio.now() < deadline:
            await self.wait_for_change(deadline)
        found = list(itertools.takewhile(lambda each: each.number > last, reversed(self._updates)))[::-1]
        return Updates(
            (str(self._last),),
            tuple(each.completion for each in found if each.completion is not None),
            tuple(each.completed_call for each in found if each.completed_call is not None),
            tuple(each.message for each in found if each.message is not None),
        )

    async def publish(self, data: bytes, *, to_workers: bool = True) -> None:
        self._add(_Update(self._next(), message=data))

    def add_completion(self, completion: Completion) -> None:
        self._add(_Update(self._next(), completion=completion))

    def add_completed_call(self, name: str) -> None:
        self._add(_Update(self._next(), completed_call=name))

    def wake_up(self) -> None:
        """Wakes up all waiters, also for changes that are not among the updates."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait_for_change(self, deadline: float) -> None:
        """Waits for the next change or the deadline, whichever comes first."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline if deadline != float("inf") else None):
                await self._changed.wait()

    def _next(self) -> int:
        self._last += 1
        return self._last

    def _add(self, update: _Update) -> None:
        self._updates.append(update)
        self.wake_up()
