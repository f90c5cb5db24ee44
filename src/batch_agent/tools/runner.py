"""A tool with what keeps it to its pace, wherever its function has to run."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from .. import aio
from ..core.coordinator import SharedCalls
from ..plan.fingerprint import canonical
from .batching import Batcher
from .result_text import as_text
from .stats import ToolStats
from .threads import DaemonThreads
from .throttle import Permit, Throttle
from .tool import Tool
from .write_claims import ClaimEntry, WriteClaim


class ToolRunner:
    """One per tool and run."""

    def __init__(
        self, tool: Tool, timeout: float | None, threads: DaemonThreads, commons: SharedCalls | None = None
    ) -> None:
        self.tool = tool
        self.ledger = ToolStats(tool.name)
        self._threads = threads
        is_async = tool.is_async if tool.batch is None else tool.batch.is_async
        self._is_async = is_async
        self._paced = Throttle(tool.name, tool.pace, timeout, None if is_async else threads.room, commons)
        self.batcher = Batcher(tool.batch, self._run, tool.sharing.is_shared) if tool.batch is not None else None

    @property
    def is_at_once(self) -> bool:
        """It never waits for its turn."""
        return self._is_async and self.batcher is None and self._paced.is_at_once

    @property
    def limit(self) -> float | None:
        """Seconds for one execution."""
        return self._paced.limit

    @property
    def overdue(self) -> str:
        """What a call is told whose time is over."""
        return self._paced.overdue

    async def text(self, arguments: dict[str, Any], entry: ClaimEntry, claim: WriteClaim | None = None) -> str:
        """Raises what the tool raises, and what the claim raises."""
        if self.batcher is not None:
            others = {name: value for name, value in arguments.items() if name != self.batcher.key_arg}
            return as_text(await self.batcher.call(arguments, canonical(others), claim))
        function = self.tool.function
        if self.is_at_once:
            if entry.claim is not None:
                await entry.claim.take()
                entry.claim.enter()
            started = aio.now()
            try:
                with self._paced.clock(entry) as clock:
                    return as_text(await function(**arguments))
            except TimeoutError:
                self._paced.check(clock)
                raise
            finally:
                self.ledger.ran(aio.now() - started)
        if self.tool.is_async:
            return as_text(await self._run(lambda: function(**arguments), arguments, entry))
        text = await self._run(lambda: _text_or_awaitable(function(**arguments)), arguments, entry)
        return text if isinstance(text, str) else as_text(text)

    def _run(self, function: Callable[[], Any], arguments: dict[str, Any], entry: ClaimEntry) -> Awaitable[Any]:
        async def attempt(place: Permit | None) -> Any:
            started = entry.began = aio.now()
            try:
                return await (entry.call(function) if self._is_async else self._in_a_thread(function, entry, place))
            finally:
                self.ledger.ran(aio.now() - started)

        return self._paced.run(attempt, arguments, entry)

    async def _in_a_thread(self, function: Callable[[], Any], entry: ClaimEntry, place: Permit | None) -> Any:
        if place is not None:
            place.began()
        ended = None if place is None else place.ended
        value = await self._threads.run(lambda: entry.call(function), ended)
        return await value if inspect.isawaitable(value) else value


def _text_or_awaitable(value: Any) -> Any:
    """In the tool's thread, because reading a value may block as well; what a wrapped async tool gives is awaited
    on the loop."""
    return value if inspect.isawaitable(value) else as_text(value)
