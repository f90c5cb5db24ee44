"""Results on their way to the caller.

The way of a result to whoever wants it.
"""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from ..aio import is_failure
from ..channel import Channel
from ..core.errors import ErrorKind, SpecError
from ..core.events import CallbackFailed
from ..core.protocols import EventSink
from ..core.results import AgentResult, T
from ..core.run_failure import RunStopped
from ..core.run_reports import PrefixReport, Scheduling

_log = logging.getLogger("batch_agent")


class ResultChannel:
    """Results of a run on their way to the caller, and what the run says of itself when it is over."""

    def __init__(self, capacity: int) -> None:
        self.results: Channel[AgentResult] = Channel(capacity)
        self.put = self.results.send
        self.scheduling = Scheduling()
        self.report: Callable[[], PrefixReport | None] = _no_report
        """What the prompts share; linted when it is called."""


class ResultStream(AsyncIterator[AgentResult[T]]):
    """`async for result in stream`, or the same inside `async with stream`.

    Leaving early, by break, exception or cancellation, cancels the run at once: with `async with` it is over when
    the block is left; without, as soon as the stream is dropped."""

    def __init__(self, drive: Callable[[ResultChannel], Coroutine[Any, Any, None]], capacity: int = 1024) -> None:
        self._drive = drive
        self._outbox = ResultChannel(capacity)
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

    async def __anext__(self) -> AgentResult[T]:
        if self._is_closed:
            raise StopAsyncIteration
        driver = self._start()
        try:
            return await anext(self._outbox.results)
        except StopAsyncIteration:
            self._was_read_to_its_end = True
        if not self._is_closed:
            driver.result()
        raise StopAsyncIteration

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

    def unread(self) -> list[AgentResult[T]]:
        """Of a stream that was left early: results that had come, but were not read."""
        return self._outbox.results.rest()

    def _start(self) -> asyncio.Task[None]:
        if self._driver is None:
            # The task must not hold the stream, or a stream that is dropped would never be collected.
            outbox = self._outbox
            self._driver = asyncio.get_running_loop().create_task(self._drive(outbox))
            self._driver.add_done_callback(lambda _: outbox.results.close())
        return self._driver

    def __del__(self) -> None:
        driver = self._driver
        if driver is not None and not driver.done() and not driver.get_loop().is_closed():
            driver.get_loop().call_soon_threadsafe(driver.cancel)


def _no_report() -> None:
    """Of a run that is not over."""
    return


class Delivery:
    """Hands results to the caller, and to `on_result` first; before both, they are written. A callback that raises is
    in the log once, and an event each time."""

    def __init__(
        self,
        put: Callable[[AgentResult], Awaitable[None]],
        on_result: Callable[[AgentResult], Any] | None,
        write: Callable[[AgentResult], None] | None = None,
        events: EventSink | None = None,
    ) -> None:
        """`write`: to a file, if there is one."""
        self._events = events
        self._put = put
        self._on_result = on_result
        self._write = write
        self._reported = False

    async def deliver(self, result: AgentResult) -> None:
        """Raises RunStopped where the file has no more room for it; the caller gets it, and those after it."""
        if self._write is not None:
            try:
                self._write(result)
            except SpecError as error:
                self._write = None
                await self._put(result)
                raise RunStopped(ErrorKind.OUT, str(error)) from error
        if self._on_result is not None:
            try:
                waiting = self._on_result(result)
                if inspect.isawaitable(waiting):
                    await waiting
            except BaseException as error:  # a user's callback may raise anything
                if isinstance(error, SystemExit) or not is_failure(error):
                    raise
                if not self._reported:
                    _log.exception(
                        "on_result raised for agent %d; the run goes on, later ones are not shown", result.index
                    )
                self._reported = True
                if self._events is not None:
                    said = f"{type(error).__name__}: {error}"
                    self._events.emit(CallbackFailed("on_result", str(result.index), said))
        await self._put(result)
