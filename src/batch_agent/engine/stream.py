"""Results on their way to the caller."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from ..core.results import AgentResult


class Outbox:
    """A bounded channel: a caller that reads slowly slows the run down instead of filling the memory."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: deque[AgentResult] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._writers: deque[asyncio.Future[None]] = deque()
        self._closed = False

    async def put(self, result: AgentResult) -> None:
        self._items.append(result)
        self._wake_reader()
        if len(self._items) > self._capacity:
            room = asyncio.get_running_loop().create_future()
            self._writers.append(room)
            await room

    async def get(self) -> AgentResult | None:
        """The next result; None once the channel is closed and empty."""
        while not self._items:
            if self._closed:
                return None
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        result = self._items.popleft()
        while self._writers and len(self._items) <= self._capacity:
            writer = self._writers.popleft()
            if not writer.done():
                writer.set_result(None)
                break
        return result

    def close(self) -> None:
        self._closed = True
        self._wake_reader()

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class ResultStream(AsyncIterator[AgentResult]):
    """`async for result in stream`, or the same inside `async with stream`.

    Leaving early, by break, exception or cancellation, cancels the run at once: with `async with` it is over when
    the block is left; without, as soon as the stream is dropped."""

    def __init__(self, drive: Callable[[Outbox], Coroutine[Any, Any, None]], capacity: int = 1024) -> None:
        self._drive = drive
        self._outbox = Outbox(capacity)
        self._driver: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AgentResult:
        driver = self._start()
        result = await self._outbox.get()
        if result is None:
            await driver
            raise StopAsyncIteration
        return result

    async def aclose(self) -> None:
        """Cancels what still runs and waits until it is gone."""
        if self._driver is not None and not self._driver.done():
            self._driver.cancel()
            await asyncio.wait([self._driver])

    def _start(self) -> asyncio.Task[None]:
        if self._driver is None:
            # The task must not hold the stream, or a stream that is dropped would never be collected.
            outbox = self._outbox
            self._driver = asyncio.get_running_loop().create_task(self._drive(outbox))
            self._driver.add_done_callback(lambda _: outbox.close())
        return self._driver

    def __del__(self) -> None:
        driver = self._driver
        if driver is not None and not driver.done() and not driver.get_loop().is_closed():
            driver.get_loop().call_soon_threadsafe(driver.cancel)
