"""The way of a result to whoever wants it."""

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from ..core.errors import ErrorKind, RunStopped, SpecError
from ..core.events import CallbackFailed
from ..core.interfaces import EventSink
from ..core.results import AgentResult
from ..tasks.cancellation import is_failure

_log = logging.getLogger("batch_agent")


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
