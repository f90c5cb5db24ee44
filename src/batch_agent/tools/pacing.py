"""Keeps one tool to its pace: so many at once, so many a second, each within its time, again if the error may pass."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from ..core.commons import Commons
from ..tasks.cancellation import is_being_cancelled
from ..tasks.deadlines import Deadlines, Watch
from .policy import Pace
from .texts import ToolTimeout

_MOST_DOUBLINGS = 6
_NOTHING: AbstractAsyncContextManager[None] = nullcontext()
Attempt = Callable[[], Awaitable[Any]]


class Paced:
    """`timeout` is the run's, for tools that name none."""

    def __init__(
        self,
        name: str,
        pace: Pace,
        timeout: float | None,
        room: asyncio.Semaphore | None = None,
        commons: Commons | None = None,
    ) -> None:
        """`room`: what it needs to run beside its own pace, such as a thread. `commons`: where the rate is kept, if
        not by this process for itself."""
        self._name = name
        self._pace = pace
        self._time = Deadlines(pace.timeout if pace.timeout is not None else timeout)
        self._places = asyncio.Semaphore(pace.max_concurrent) if pace.max_concurrent else _NOTHING
        self._room = room or _NOTHING
        self._is_free = pace.rate_limit is None and self._places is _NOTHING and room is None
        self.is_at_once = self._is_free and not pace.retries
        """Nothing is waited for, and nothing repeated: a clock is all that it takes."""
        self._commons = commons
        self._buckets: dict[str, _Bucket] = {}

    def run(self, attempt: Attempt, arguments: Mapping[str, Any]) -> Awaitable[Any]:
        """Raises what the tool raised, and ToolTimeout. Its clock does not run while it waits for its turn."""
        return self._repeated(attempt, arguments) if self._pace.retries else self._once(attempt, arguments)

    async def _repeated(self, attempt: Attempt, arguments: Mapping[str, Any]) -> Any:
        for failures in range(self._pace.retries + 1):
            try:
                return await self._once(attempt, arguments)
            except self._pace.retry_on as error:
                if is_being_cancelled():  # the error is what the tool made of it
                    raise asyncio.CancelledError from error
                if failures == self._pace.retries:
                    raise
                await asyncio.sleep(self._delay(failures))
        raise AssertionError("unreachable")

    def _once(self, attempt: Attempt, arguments: Mapping[str, Any]) -> Awaitable[Any]:
        return self.in_time(attempt()) if self._is_free else self._in_turn(attempt, arguments)

    async def _in_turn(self, attempt: Attempt, arguments: Mapping[str, Any]) -> Any:
        if self._pace.rate_limit is not None:  # before it takes a place: those of another key may have their turn
            await self._bucket(self._pace.rate_limit, arguments).wait()
        async with self._places, self._room:
            return await self.in_time(attempt())

    async def in_time(self, work: Awaitable[Any]) -> Any:
        """Raises ToolTimeout."""
        clock = self.clock()
        try:
            with clock:
                return await work
        except TimeoutError:
            self.check(clock)
            raise

    def clock(self) -> Watch:
        """For the running task, of which one execution is."""
        task = asyncio.current_task()
        assert task is not None
        return self._time.watch(task)

    def check(self, clock: Watch) -> None:
        """Raises ToolTimeout if it was that clock which ended an execution."""
        if clock.expired:
            spent = f"{self._name} took longer than its {self._time.limit:g} s (timeout_per_tool)."
            raise ToolTimeout(spent) from None

    def _bucket(self, rate: float, arguments: Mapping[str, Any]) -> "_Bucket":
        key = self._pace.rate_key(arguments) if self._pace.rate_key is not None else ""
        found = self._buckets.get(key)
        if found is None:
            burst = self._pace.burst or max(1, int(rate))
            found = self._buckets[key] = _Bucket(f"{self._name}:{key}", rate, burst, self._commons)
        return found

    def _delay(self, failures: int) -> float:
        return self._pace.backoff * 2.0 ** min(failures, _MOST_DOUBLINGS) * (0.5 + random.random() / 2)  # noqa: S311


class _Bucket:
    """Lets through `burst` at once and then `rate` a second, in the order in which they come. Who leaves while waiting
    has used nothing up; of a rate that is kept with other processes, the first in the queue has its place already."""

    def __init__(self, name: str, rate: float, burst: int, commons: Commons | None) -> None:
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
            self._next = max(self._next, asyncio.get_running_loop().time()) + self._interval

    async def _seconds(self) -> float:
        """One at a time also where others are asked: a process with a long queue takes turns with the rest."""
        if self._commons is not None:
            told = await self._commons.turn(self._name, interval=self._interval, ahead=self._ahead)
            if told is not None:
                return told
        return self._next - self._ahead - asyncio.get_running_loop().time()
