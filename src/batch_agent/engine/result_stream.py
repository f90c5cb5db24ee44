"""Result stream: delivers the results of a run to its caller, to `on_result` and to a file."""

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
from ..core.protocols.event_sink import EventSink
from ..core.results import AgentResult, T
from ..core.run_failure import RunStopped
from ..core.run_reports import PrefixReport, Scheduling

_log = logging.getLogger("batch_agent")


class ResultChannel:
    """Channel from a run to its caller: the results, and the reports of the finished run."""

    def __init__(self, capacity: int) -> None:
        self.results: Channel[AgentResult] = Channel(capacity)
        self.put = self.results.send
        self.total: int | None = None
        """Number of inputs, if it is known."""
        self.scheduling = Scheduling()
        self.report: Callable[[], PrefixReport | None] = _no_report
        """Returns the prefix report; the prompts are linted when it is called."""

    def add_total(self, agents: int) -> None:
        """The run has so many agents more than were known."""
        if self.total is not None:
            self.total += agents


class ResultStream(AsyncIterator[AgentResult[T]]):
    """`async for result in stream`, or the same inside `async with stream`.

    Leaving early, by break, exception or cancellation, cancels the run: with `async with` it has ended when the block
    is left; without, it is cancelled when the stream is garbage collected."""

    def __init__(self, drive: Callable[[ResultChannel], Coroutine[Any, Any, None]], capacity: int = 1024) -> None:
        self.drive = drive
        """Runs the agents; the results go to a channel."""
        self._channel = ResultChannel(capacity)
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
            return await anext(self._channel.results)
        except StopAsyncIteration:
            self._was_read_to_its_end = True
        if not self._is_closed:
            driver.result()
        raise StopAsyncIteration

    @property
    def total(self) -> int | None:
        """Number of inputs; None if it is unknown, or if the run has not started."""
        return self._channel.total

    @property
    def scheduling(self) -> Scheduling:
        """How the run was scheduled; complete once the run has ended."""
        return self._channel.scheduling

    @property
    def prefix(self) -> PrefixReport | None:
        """What the prompts share, as predicted and as measured; available once the run has ended."""
        return self._channel.report()

    @property
    def report(self) -> Callable[[], PrefixReport | None]:
        """Returns `prefix` when called, so that prompts are linted only if it is read."""
        return self._channel.report

    async def aclose(self) -> None:
        """Cancels the run if it has not ended, and waits for its end."""
        self._is_closed = True
        driver = self._driver
        if driver is None:
            return
        if not driver.done():
            driver.cancel()
            await asyncio.wait([driver])
        error = None if driver.cancelled() else driver.exception()
        if error is not None and not self._was_read_to_its_end:
            _log.warning("The run had failed before its result stream was closed: %s", error)

    def unread(self) -> list[AgentResult[T]]:
        """Results that had arrived but were not read when the stream was closed early."""
        return self._channel.results.drain()

    def _start(self) -> asyncio.Task[None]:
        if self._driver is None:
            # The task must not reference the stream, or a dropped stream would never be collected.
            channel = self._channel
            self._driver = asyncio.get_running_loop().create_task(self.drive(channel))
            self._driver.add_done_callback(lambda _: channel.results.close())
        return self._driver

    def __del__(self) -> None:
        driver = self._driver
        if driver is not None and not driver.done() and not driver.get_loop().is_closed():
            driver.get_loop().call_soon_threadsafe(driver.cancel)


def _no_report() -> None:
    """Report of a run that has not ended."""
    return


class Delivery:
    """Delivers each result to the file, then to `on_result`, then to the caller. A callback that raises is logged once
    and reported as an event each time."""

    def __init__(
        self,
        put: Callable[[AgentResult], Awaitable[None]],
        on_result: Callable[[AgentResult], Any] | None,
        write: Callable[[AgentResult], None] | None = None,
        events: EventSink | None = None,
        complete: Callable[[AgentResult], AgentResult] | None = None,
    ) -> None:
        """`write`: writes a result to the file, if there is one. `complete`: adds what only the caller sees."""
        self._complete = complete
        self._events = events
        self._put = put
        self._on_result = on_result
        self._write = write
        self._reported = False

    async def deliver(self, result: AgentResult) -> None:
        """Raises RunStopped if the file cannot be written; the caller still receives this result and later ones."""
        if self._complete is not None:
            result = self._complete(result)
        if self._write is not None:
            try:
                self._write(result)
            except SpecError as error:
                self._write = None
                await self._put(result)
                raise RunStopped(ErrorKind.OUT, str(error)) from error.__cause__
        if self._on_result is not None:
            try:
                waiting = self._on_result(result)
                if waiting is not None and inspect.isawaitable(waiting):
                    await waiting
            except BaseException as error:  # a user's callback may raise anything
                if isinstance(error, SystemExit) or not is_failure(error):
                    raise
                if not self._reported:
                    _log.exception(
                        "on_result raised for agent %d; the run continues, further errors are not logged", result.index
                    )
                self._reported = True
                if self._events is not None:
                    message = f"{type(error).__name__}: {error}"
                    self._events.emit(CallbackFailed("on_result", str(result.index), message))
        await self._put(result)
