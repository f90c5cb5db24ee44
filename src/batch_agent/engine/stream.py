"""Results on their way to the caller."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from ..core.results import AgentResult
from ..core.scheduling import Scheduling
from ..core.sharing import PrefixReport

_log = logging.getLogger("batch_agent")


class Outbox:
    """A bounded channel: a caller that reads slowly slows the run down instead of filling the memory."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: deque[AgentResult] = deque()
        self._news = asyncio.Event()
        self._writers: deque[asyncio.Future[None]] = deque()
        self._closed = False
        self.scheduling = Scheduling()
        self.report: Callable[[], PrefixReport | None] = _no_report
        """What the prompts share; linted when it is called."""

    async def put(self, result: AgentResult) -> None:
        """Never loses the result; returns when there is room for another one."""
        self._items.append(result)
        self._news.set()
        if len(self._items) > self._capacity:
            room = asyncio.get_running_loop().create_future()
            self._writers.append(room)
            await room

    async def get(self) -> AgentResult | None:
        """The next result; None once the channel is closed and empty."""
        while not self._items:
            if self._closed:
                return None
            self._news.clear()
            await self._news.wait()
        result = self._items.popleft()
        self._let_one_writer_go()
        return result

    def rest(self) -> list[AgentResult]:
        """What nobody has read yet."""
        rest = list(self._items)
        self._items.clear()
        return rest

    def close(self) -> None:
        self._closed = True
        self._news.set()

    def _let_one_writer_go(self) -> None:
        """One per result that is read: as many wait as there are results beyond the capacity."""
        while self._writers:
            writer = self._writers.popleft()
            if not writer.done():
                writer.set_result(None)
                return


class ResultStream(AsyncIterator[AgentResult]):
    """`async for result in stream`, or the same inside `async with stream`.

    Leaving early, by break, exception or cancellation, cancels the run at once: with `async with` it is over when
    the block is left; without, as soon as the stream is dropped."""

    def __init__(self, drive: Callable[[Outbox], Coroutine[Any, Any, None]], capacity: int = 1024) -> None:
        self._drive = drive
        self._outbox = Outbox(capacity)
        self._driver: asyncio.Task[None] | None = None
        self._is_closed = False
        self._was_read_to_its_end = False

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
        if self._is_closed:
            raise StopAsyncIteration
        driver = self._start()
        result = await self._outbox.get()
        if result is None:
            self._was_read_to_its_end = True
            if not self._is_closed:
                driver.result()
            raise StopAsyncIteration
        return result

    @property
    def scheduling(self) -> Scheduling:
        """How the run was scheduled; whole once it is over."""
        return self._outbox.scheduling

    @property
    def prefix(self) -> PrefixReport | None:
        """What the prompts share, as expected and as seen; there once the run is over."""
        return self._outbox.report()

    @property
    def report(self) -> Callable[[], PrefixReport | None]:
        """`prefix`, for one who may never read it: the prompts are linted when it is called."""
        return self._outbox.report

    async def aclose(self) -> None:
        """Cancels what still runs and waits until it is gone."""
        self._is_closed = True
        driver = self._driver
        if driver is None:
            return
        if not driver.done():
            driver.cancel()
            await asyncio.wait([driver])
        error = None if driver.cancelled() else driver.exception()
        if error is not None and not self._was_read_to_its_end:
            _log.warning("The run had failed when its results were left: %s", error)

    def unread(self) -> list[AgentResult]:
        """Of a stream that was left early: results that had come, but were not read."""
        return self._outbox.rest()

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


def _no_report() -> None:
    """Of a run that is not over."""
    return
