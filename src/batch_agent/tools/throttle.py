"""Keeps one tool to its pace: so many at once, so many a second, each within its time, again if the error may pass.

Concurrency limit of one tool. A thread counts until its function has returned, also after its call timed out.
"""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Any

from .. import aio
from ..aio import Deadlines, DeadlineWatch, is_being_cancelled
from ..core.coordinator import SharedCalls
from ..schedule.backoff import Backoff
from .policy import ExecutionLimits
from .result_text import ToolTimeout
from .write_claims import ClaimEntry


class ConcurrencyPermits:
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

    async def take(self) -> "Permit":
        """Raises ToolTimeout."""
        if self._free:
            self._free -= 1
            return Permit(self)
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
        return Permit(self)

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


class Permit:
    """Held by a call, and by the thread that runs for it, until both are done."""

    __slots__ = ("_is_late", "_places", "_runs")

    def __init__(self, places: ConcurrencyPermits) -> None:
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


_LONGEST_BACKOFF = 64
"""Times the first one."""
_NOTHING: AbstractAsyncContextManager[None] = nullcontext()
Attempt = Callable[[Permit | None], Awaitable[Any]]
"""One try. A thread that runs for it holds the place, if there is one."""


class Throttle:
    """`timeout` is the run's, for tools that name none."""

    def __init__(
        self,
        name: str,
        pace: ExecutionLimits,
        timeout: float | None,
        room: asyncio.Semaphore | None = None,
        commons: SharedCalls | None = None,
    ) -> None:
        """`room`: what it needs to run beside its own pace, such as a thread. `commons`: where the rate is kept, if
        not by this process for itself."""
        self._name = name
        self._pace = pace
        self._time = Deadlines(pace.timeout if pace.timeout is not None else timeout)
        seconds = self._time.limit or 0.0
        self.overdue = f"{name} took longer than its {seconds:g} s (timeout_per_tool)."
        """What a call is told whose time is over."""
        self._places = ConcurrencyPermits(name, pace.max_concurrent, self._time.limit) if pace.max_concurrent else None
        self._room = room or _NOTHING
        self._is_free = pace.rate_limit is None and self._places is None and room is None
        self.is_at_once = self._is_free and not pace.retries
        """Nothing is waited for, and nothing repeated: a clock is all that it takes."""
        self._commons = commons
        self._buckets: dict[str, _Bucket] = {}

    def run(self, attempt: Attempt, arguments: Mapping[str, Any], entry: ClaimEntry) -> Awaitable[Any]:
        """Raises what the tool raised, ToolTimeout, and what the claim of `entry` raises, which is taken when it is the
        call's turn. Its clock does not run before."""
        return (
            self._repeated(attempt, arguments, entry) if self._pace.retries else self._once(attempt, arguments, entry)
        )

    async def _repeated(self, attempt: Attempt, arguments: Mapping[str, Any], entry: ClaimEntry) -> Any:
        for failures in range(self._pace.retries + 1):
            try:
                return await self._once(attempt, arguments, entry)
            except self._pace.retry_on as error:
                if is_being_cancelled():  # the error is what the tool made of it
                    raise asyncio.CancelledError from error
                if failures == self._pace.retries:
                    raise
                await asyncio.sleep(self._delay(failures))
        raise AssertionError("unreachable")

    async def _once(self, attempt: Attempt, arguments: Mapping[str, Any], entry: ClaimEntry) -> Any:
        if self._pace.rate_limit is not None:  # before it takes a place: those of another key may have their turn
            await self._bucket(self._pace.rate_limit, arguments).wait()
        place = None if self._places is None else await self._places.take()
        try:
            async with self._room:
                await entry.claimed()
                return await self._in_time(attempt(place), entry)
        finally:
            if place is not None:
                place.leave()

    async def _in_time(self, work: Awaitable[Any], entry: ClaimEntry) -> Any:
        """Raises ToolTimeout."""
        clock = self.clock(entry)
        try:
            with clock:
                return await work
        except TimeoutError:
            self.check(clock)
            raise

    def clock(self, entry: ClaimEntry) -> DeadlineWatch:
        """For the running task, of which one execution is."""
        task = asyncio.current_task()
        assert task is not None
        return self._time.watch(task, entry.extend)

    @property
    def limit(self) -> float | None:
        return self._time.limit

    def check(self, clock: DeadlineWatch) -> None:
        """Raises ToolTimeout if it was that clock which ended an execution."""
        if clock.expired:
            raise ToolTimeout(self.overdue) from None

    def _bucket(self, rate: float, arguments: Mapping[str, Any]) -> "_Bucket":
        key = self._pace.rate_key(arguments) if self._pace.rate_key is not None else ""
        found = self._buckets.get(key)
        if found is None:
            burst = self._pace.burst or max(1, int(rate))
            found = self._buckets[key] = _Bucket(f"{self._name}:{key}", rate, burst, self._commons)
        return found

    def _delay(self, failures: int) -> float:
        first = self._pace.backoff
        return Backoff(first, _LONGEST_BACKOFF * first).jittered(failures, random.random())  # noqa: S311


class _Bucket:
    """Lets through `burst` at once and then `rate` a second, in the order in which they come. Who leaves while waiting
    has used nothing up; of a rate that is kept with other processes, the first in the queue has its place already."""

    def __init__(self, name: str, rate: float, burst: int, commons: SharedCalls | None) -> None:
        self._name = name
        self._commons = commons
        self._interval = 1.0 / rate
        self._ahead = (burst - 1) * self._interval
        self._next = float("-inf")
        self._queue = asyncio.Lock()

    async def wait(self) -> None:
        async with self._queue:
            seconds = await self._seconds()
            if seconds > 0:
                await asyncio.sleep(seconds)
            self._next = max(self._next, aio.now()) + self._interval

    async def _seconds(self) -> float:
        """One at a time also where others are asked: a process with a long queue takes turns with the rest."""
        if self._commons is not None:
            told = await self._commons.reserve_rate(self._name, interval=self._interval, ahead=self._ahead)
            if told is not None:
                return told
        return self._next - self._ahead - aio.now()
