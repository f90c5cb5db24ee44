"""Runner of one tool (in a thread, on the loop or in a batch) within its limits, with statistics per tool."""

import inspect
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from .. import aio
from ..core.messages import ToolSource
from ..core.results import ToolUse
from ..core.shared_calls import SharedCalls
from ..forked_child import ForkGuard
from ..plan.fingerprint import canonical
from .call_batch import Batcher
from .result_text import RenderedResult, as_output, read_async
from .threads import DaemonThreads
from .throttle import Permit, Throttle
from .tool import Tool
from .write_claims import ClaimEntry, WriteClaim

_MAX_DURATIONS = 512
_CHARS_PER_TOKEN = 4
_MAX_SUMMARIZED_CHARS = 1_000_000
"""The most characters to read from an iterator whose values the model summarizes."""


@dataclass(slots=True)
class ToolStats:
    """Statistics of one tool in one run."""

    name: str
    requested: int = 0
    executed: int = 0
    shared: int = 0
    cached: int = 0
    failed: int = 0
    prewarmed: int = 0
    seconds: float = 0.0
    seconds_saved: float = 0.0
    _durations: "deque[float]" = field(default_factory=lambda: deque(maxlen=_MAX_DURATIONS))

    def record_call(self, source: ToolSource, seconds: float, *, is_error: bool) -> None:
        """Counts a call that was answered. `seconds`: the duration of its execution, shared or not."""
        self.requested += 1
        self.failed += is_error
        if source == "shared":
            self.shared += 1
            self.seconds_saved += seconds
        elif source == "cached":
            self.cached += 1
            self.seconds_saved += seconds

    def record_execution(self, seconds: float) -> None:
        """Counts an execution that ended. A batch of many keys is one execution."""
        self.executed += 1
        self.seconds += seconds
        self._durations.append(seconds)

    def quantile(self, share: float) -> float | None:
        """Duration quantile over the latest executions; None before the first."""
        if not self._durations:
            return None
        ordered = sorted(self._durations)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def summary(self) -> ToolUse:
        return ToolUse(
            self.name,
            self.requested,
            self.executed,
            self.shared,
            self.cached,
            self.failed,
            self.prewarmed,
            self.seconds,
            self.seconds_saved,
            p50=self.quantile(0.5),
            p75=self.quantile(0.75),
            p99=self.quantile(0.99),
        )


class ToolRunner:
    """Runs one tool in one run."""

    def __init__(
        self,
        tool: Tool,
        timeout: float | None,
        max_tokens: int,
        threads: DaemonThreads,
        shared_calls: SharedCalls | None = None,
    ) -> None:
        """`max_tokens`: of a result, for tools without a limit of their own."""
        self.tool = tool
        self.max_tokens = tool.max_tokens or max_tokens
        self.max_chars = self.max_tokens * _CHARS_PER_TOKEN
        self._max_read_chars = max(self.max_chars, _MAX_SUMMARIZED_CHARS) if tool.summarize else self.max_chars
        self.stats = ToolStats(tool.name)
        self._threads = threads
        is_async = tool.is_async if tool.batch is None else tool.batch.is_async
        self._is_async = is_async
        self._throttle = Throttle(tool.name, tool.limits, timeout, None if is_async else threads.slots, shared_calls)
        self.batcher = Batcher(tool.batch, self._execute, tool.sharing.is_shared) if tool.batch is not None else None

    @property
    def is_unthrottled(self) -> bool:
        """Whether executions start at once, on the loop."""
        return self._is_async and self.batcher is None and self._throttle.is_unthrottled

    @property
    def limit(self) -> float | None:
        """Timeout of one execution in seconds."""
        return self._throttle.limit

    @property
    def timeout_message(self) -> str:
        """Result of a call that timed out."""
        return self._throttle.timeout_message

    async def run(
        self, arguments: dict[str, Any], entry: ClaimEntry, claim: WriteClaim | None = None
    ) -> RenderedResult:
        """The result as text and images. Raises what the tool raises, and what the claim raises."""
        if self.batcher is not None:
            others = {name: value for name, value in arguments.items() if name != self.batcher.key_arg}
            return self._render(await self.batcher.call(arguments, canonical(others), claim))
        function = self.tool.function
        if self.is_unthrottled:
            if entry.claim is not None:
                await entry.claim.take()
                entry.claim.enter()
            started = aio.now()
            try:
                with self._throttle.deadline(entry) as deadline:
                    return self._render(await self._resolve(function(**arguments)))
            except TimeoutError:
                self._throttle.raise_if_expired(deadline)
                raise
            finally:
                self.stats.record_execution(aio.now() - started)
        if self.tool.is_async:
            return self._render(await self._execute(lambda: function(**arguments), arguments, entry))
        output = await self._execute(lambda: self._render_in_thread(function(**arguments)), arguments, entry)
        return output if isinstance(output, RenderedResult) else self._render(output)

    def _execute(self, function: Callable[[], Any], arguments: dict[str, Any], entry: ClaimEntry) -> Awaitable[Any]:
        async def attempt(permit: Permit | None) -> Any:
            started = entry.started_at = aio.now()
            try:
                value = entry.call(function) if self._is_async else await self._in_thread(function, entry, permit)
                return await self._resolve(value)
            finally:
                self.stats.record_execution(aio.now() - started)

        return self._throttle.run(attempt, arguments, entry)

    async def _in_thread(self, function: Callable[[], Any], entry: ClaimEntry, permit: Permit | None) -> Any:
        if permit is not None:
            permit.thread_started()
        on_end = None if permit is None else permit.thread_ended
        return await self._threads.run(lambda: entry.call(function), on_end)

    async def _resolve(self, value: Any) -> Any:
        """What has to be awaited, on the loop: a coroutine, an async iterator, or one after the other."""
        with ForkGuard():
            if inspect.isawaitable(value):
                value = await value
            return await read_async(value, self._max_read_chars) if isinstance(value, AsyncIterator) else value

    def _render(self, value: Any) -> RenderedResult:
        return as_output(value, self._max_read_chars)

    def _render_in_thread(self, value: Any) -> Any:
        """Renders a value in the tool's thread, because rendering may block too. An awaitable, which a wrapped async
        tool returns, is left to the loop."""
        return value if inspect.isawaitable(value) or isinstance(value, AsyncIterator) else self._render(value)
