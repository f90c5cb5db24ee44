"""Throttle of one tool: concurrency limit, rate limit, timeout and retries.

A thread holds its permit until its function has returned, even after the call that it ran for timed out.
"""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Any

from .. import aio
from ..aio import Deadlines, DeadlineWatch, is_being_cancelled
from ..core.shared_calls import SharedCalls
from ..schedule.retry import Backoff
from .policy import ExecutionLimits
from .result_text import ToolTimeout
from .write_claims import ClaimEntry

_MAX_BACKOFF_FACTOR = 64
"""The longest delay before a retry, as a multiple of the first."""
_NO_THREAD: AbstractAsyncContextManager[None] = nullcontext()


class ConcurrencyPermits:
    """At most `limit` executions at once, first come, first served."""

    def __init__(self, name: str, limit: int, timeout: float | None) -> None:
        """`timeout`: seconds after which waiting calls fail, if calls that timed out hold all permits."""
        self._name = name
        self._limit = limit
        self._timeout = timeout
        self._free = limit
        self._late = 0
        """Permits of threads whose calls have ended."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def acquire(self) -> "Permit":
        """Raises ToolTimeout."""
        if self._free:
            self._free -= 1
            return Permit(self)
        granted = asyncio.get_running_loop().create_future()
        self._waiting.append(granted)
        self._set_timer()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                self.release()
            raise
        finally:
            with suppress(ValueError):
                self._waiting.remove(granted)
        return Permit(self)

    def release(self) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return
        self._free += 1

    def add_late(self, change: int) -> None:
        """Counts threads that still run after their calls have ended: one more, or one fewer."""
        self._late += change
        self._set_timer()

    def _set_timer(self) -> None:
        if self._late < self._limit:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        elif self._timer is None and self._waiting and self._timeout is not None:
            self._timer = asyncio.get_running_loop().call_later(self._timeout, self._reject_waiting)

    def _reject_waiting(self) -> None:
        self._timer = None
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            if not each.done():
                each.set_exception(
                    ToolTimeout(
                        f"{self._name} was not called: all {self._limit} of its places (max_concurrent) are held by "
                        "calls that timed out and still run."
                    )
                )


class Permit:
    """Permission to execute, held by a call and by its thread until both are done."""

    __slots__ = ("_has_thread", "_is_late", "_permits")

    def __init__(self, permits: ConcurrencyPermits) -> None:
        self._permits = permits
        self._has_thread = False
        self._is_late = False

    def release(self) -> None:
        """Called when the call has ended."""
        if self._has_thread:
            self._is_late = True
            self._permits.add_late(1)
        else:
            self._permits.release()

    def thread_started(self) -> None:
        self._has_thread = True

    def thread_ended(self) -> None:
        self._has_thread = False
        if self._is_late:
            self._permits.add_late(-1)
            self._permits.release()


Attempt = Callable[[Permit | None], Awaitable[Any]]
"""One attempt. A thread that runs for it holds the permit, if there is one."""


class Throttle:
    """Runs the executions of one tool within its limits."""

    def __init__(
        self,
        name: str,
        limits: ExecutionLimits,
        timeout: float | None,
        thread_slots: asyncio.Semaphore | None = None,
        shared_calls: SharedCalls | None = None,
    ) -> None:
        """`timeout`: the run's, for tools without one. `thread_slots`: acquired for a tool that needs a thread.
        `shared_calls`: keeps the rate and the limit of concurrent executions across processes; None: this process
        keeps them for itself."""
        self._name = name
        self._limits = limits
        self._deadlines = Deadlines(limits.timeout if limits.timeout is not None else timeout)
        seconds = self._deadlines.limit or 0.0
        self.timeout_message = f"{name} took longer than its {seconds:g} s (timeout_per_tool)."
        """Result of a call that timed out."""
        concurrent = limits.max_concurrent
        self._permits = ConcurrencyPermits(name, concurrent, self._deadlines.limit) if concurrent else None
        self._shared_limit = None if limits.is_local else concurrent
        self._thread_slots = thread_slots or _NO_THREAD
        never_waits = limits.rate_limit is None and self._permits is None and thread_slots is None
        self.is_unthrottled = never_waits and not limits.retries
        """Whether executions neither wait nor are retried; all they need is a deadline."""
        self._shared_calls = shared_calls
        self._buckets: dict[str, _TokenBucket] = {}

    def run(self, attempt: Attempt, arguments: Mapping[str, Any], entry: ClaimEntry) -> Awaitable[Any]:
        """Runs an execution when it is its turn, which is also when the claim of `entry` is taken and the timeout
        starts. Raises what the tool raised, ToolTimeout, and what the claim raises."""
        return (
            self._retried(attempt, arguments, entry) if self._limits.retries else self._once(attempt, arguments, entry)
        )

    async def _retried(self, attempt: Attempt, arguments: Mapping[str, Any], entry: ClaimEntry) -> Any:
        for failures in range(self._limits.retries + 1):
            try:
                return await self._once(attempt, arguments, entry)
            except self._limits.retry_on as error:
                if is_being_cancelled():  # the tool turned the cancellation into this error
                    raise asyncio.CancelledError from error
                if failures == self._limits.retries:
                    raise
                await asyncio.sleep(self._delay(failures))
        raise AssertionError("unreachable")

    async def _once(self, attempt: Attempt, arguments: Mapping[str, Any], entry: ClaimEntry) -> Any:
        if self._limits.rate_limit is not None:  # before the permit, which calls with another rate_key may use
            await self._bucket(self._limits.rate_limit, arguments).wait()
        permit = None if self._permits is None else await self._permits.acquire()
        end_shared: Callable[[], None] | None = None
        try:
            if self._shared_limit is not None and self._shared_calls is not None:
                end_shared = await self._shared_calls.acquire_permit(self._name, self._shared_limit)
            async with self._thread_slots:
                await entry.take_claim()
                return await self._in_time(attempt(permit), entry)
        finally:
            if end_shared is not None:  # a thread that outlives its call counts in this process only
                end_shared()
            if permit is not None:
                permit.release()

    async def _in_time(self, work: Awaitable[Any], entry: ClaimEntry) -> Any:
        """Raises ToolTimeout."""
        deadline = self.deadline(entry)
        try:
            with deadline:
                return await work
        except TimeoutError:
            self.raise_if_expired(deadline)
            raise

    def deadline(self, entry: ClaimEntry) -> DeadlineWatch:
        """Deadline of one execution, which the current task runs."""
        task = asyncio.current_task()
        assert task is not None
        return self._deadlines.watch(task, entry.extend)

    @property
    def limit(self) -> float | None:
        return self._deadlines.limit

    def raise_if_expired(self, deadline: DeadlineWatch) -> None:
        """Raises ToolTimeout if that deadline ended the execution."""
        if deadline.expired:
            raise ToolTimeout(self.timeout_message) from None

    def _bucket(self, rate: float, arguments: Mapping[str, Any]) -> "_TokenBucket":
        key = self._limits.rate_key(arguments) if self._limits.rate_key is not None else ""
        bucket = self._buckets.get(key)
        if bucket is None:
            burst = self._limits.burst or max(1, int(rate))
            bucket = self._buckets[key] = _TokenBucket(f"{self._name}:{key}", rate, burst, self._shared_calls)
        return bucket

    def _delay(self, failures: int) -> float:
        first = self._limits.backoff
        return Backoff(first, _MAX_BACKOFF_FACTOR * first).jittered(failures, random.random())  # noqa: S311


class _TokenBucket:
    """Lets `burst` executions through at once, then `rate` per second, first come, first served. A waiter that is
    cancelled uses nothing up. With a rate kept across processes, the first in the queue has its turn already."""

    def __init__(self, name: str, rate: float, burst: int, shared_calls: SharedCalls | None) -> None:
        self._name = name
        self._shared_calls = shared_calls
        self._interval = 1.0 / rate
        self._ahead = (burst - 1) * self._interval
        self._next = float("-inf")
        self._queue = asyncio.Lock()

    async def wait(self) -> None:
        async with self._queue:
            seconds = await self._delay()
            if seconds > 0:
                await asyncio.sleep(seconds)
            self._next = max(self._next, aio.now()) + self._interval

    async def _delay(self) -> float:
        """Asks other processes for one turn at a time, so that a process with a long queue alternates with them."""
        if self._shared_calls is not None:
            delay = await self._shared_calls.reserve_rate(self._name, interval=self._interval, ahead=self._ahead)
            if delay is not None:
                return delay
        return self._next - self._ahead - aio.now()
