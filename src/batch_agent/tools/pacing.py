"""Keeps one tool to its pace: so many at once, so many a second, each within its time, again if the error may pass."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from aiolimiter import AsyncLimiter

from .policy import Pace
from .texts import ToolTimeout

_MOST_DOUBLINGS = 6
Attempt = Callable[[], Awaitable[Any]]


class Paced:
    """`timeout` is the run's, for tools that name none."""

    def __init__(self, name: str, pace: Pace, timeout: float | None, room: asyncio.Semaphore | None = None) -> None:
        """`room`: what it needs to run beside its own pace, such as a thread."""
        self._name = name
        self._pace = pace
        self._limit = pace.timeout if pace.timeout is not None else timeout
        self._places = asyncio.Semaphore(pace.max_concurrent) if pace.max_concurrent else None
        self._room = room
        self._buckets: dict[str, AsyncLimiter] = {}

    async def run(self, attempt: Attempt, arguments: Mapping[str, Any]) -> Any:
        """Raises what the tool raised, and ToolTimeout. Its clock does not run while it waits for its turn."""
        for failures in range(self._pace.retries + 1):
            try:
                return await self._once(attempt, arguments)
            except self._pace.retry_on:
                if failures == self._pace.retries:
                    raise
                await asyncio.sleep(self._delay(failures))
        raise AssertionError("unreachable")

    async def _once(self, attempt: Attempt, arguments: Mapping[str, Any]) -> Any:
        async with AsyncExitStack() as stack:
            if self._places is not None:
                await stack.enter_async_context(self._places)
            if self._pace.rate_limit is not None:
                await self._bucket(self._pace.rate_limit, arguments).acquire()
            if self._room is not None:
                await stack.enter_async_context(self._room)
            clock = asyncio.timeout(self._limit)
            try:
                async with clock:
                    return await attempt()
            except TimeoutError:
                if clock.expired():
                    raise ToolTimeout(
                        f"{self._name} took longer than its {self._limit:g} s (timeout_per_tool)."
                    ) from None
                raise

    def _bucket(self, rate: float, arguments: Mapping[str, Any]) -> AsyncLimiter:
        key = self._pace.rate_key(arguments) if self._pace.rate_key is not None else ""
        found = self._buckets.get(key)
        if found is None:
            burst = self._pace.burst or max(1, int(rate))
            found = self._buckets[key] = AsyncLimiter(burst, burst / rate)
        return found

    def _delay(self, failures: int) -> float:
        return self._pace.backoff * 2.0 ** min(failures, _MOST_DOUBLINGS) * (0.5 + random.random() / 2)  # noqa: S311
