"""Programs in progress, tracked by their requests."""

import asyncio
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ..core.agent_config import Job
from ..core.errors import BackendError, ErrorKind
from ..core.events import CallsEnded, CallsStarted
from ..core.messages import Assistant, Message, ToolCall, ToolResult, ToolResults
from ..core.program_runtime import CompletionRequest
from ..core.protocols.event_sink import EventSink
from ..core.requests import NO_USAGE, Reply, Request
from ..core.results import CallRecord
from ..core.run_failure import RunStopped
from ..engine.admission import AdmissionController

_PROGRAM = ToolCall("", "(program)", "")
"""Name of what an agent waits for while its program neither sends a request nor runs a tool that the model called."""


_MAX_FAILURES = 3


class ProgramSession:
    """One agent while its program works on a prompt. Between requests it holds no slot, and keeps its residency only on
    a lease, like any agent that waits for its tools."""

    def __init__(
        self, job: Job, gate: AdmissionController, events: EventSink | None, cancel: Callable[[], object]
    ) -> None:
        """`cancel`: stops the program."""
        self.job = job
        self.attempt = secrets.token_hex(4)
        """Distinguishes the requests of this session from those of failed attempts."""
        self.turns = 0
        self.usage = NO_USAGE
        self.queued = 0.0
        self.calls: list[CallRecord] = []
        self.transcript: tuple[Message, ...] = ()
        self.refusal: BackendError | None = None
        """Error of the last request, if it failed."""
        self.failures = 0
        """Number of consecutive requests that failed after retries."""
        self.ended_by: BackendError | RunStopped | None = None
        """The reason why the program was cancelled."""
        self._gate = gate
        self._events = events
        self._cancel = cancel
        self._now = asyncio.get_running_loop().time
        self._waiting = ExitStack()
        self._calls: tuple[ToolCall, ...] = ()
        self._request: Request | None = None
        self._since = 0.0
        self._open_requests = 0
        self._wait()

    def stop(self, error: BackendError | RunStopped) -> None:
        """Cancels the program, because none of its requests can be answered any more."""
        if self.ended_by is None:
            self.ended_by = error
            self._cancel()

    def on_failure(self, error: BackendError) -> None:
        """Counts a failed request. Many programs repeat failed requests themselves, some without limit, so the program
        is cancelled after a few failures of the server."""
        self.refusal = error
        self.failures += error.retryable
        if error.kind in (ErrorKind.BUDGET, ErrorKind.MAX_TURNS) or self.failures >= _MAX_FAILURES:
            self.stop(error)

    @contextmanager
    def request_in_progress(self, completion: CompletionRequest) -> Iterator[bool]:
        """Context of a request. Yields whether it is the program's only one."""
        is_only, self._open_requests = not self._open_requests, self._open_requests + 1
        if is_only:
            self._waiting.close()
            self._record_calls(completion.messages)
        try:
            yield is_only
        finally:
            self._open_requests -= 1
            if is_only:
                self._wait()

    def on_reply(self, completion: CompletionRequest, request: Request, reply: Reply, queued: float) -> None:
        self.refusal = None
        self.turns += 1
        self.usage += reply.usage
        self.queued += queued
        self._calls, self._request = (*self._calls, *reply.calls), request
        if completion.tools or not self.transcript:  # such as a request for a title
            self.transcript = (*completion.messages, Assistant(reply.text, reply.calls, reply.thoughts))

    def close(self) -> None:
        """Ends the session after the program has finished."""
        self._waiting.close()

    def _wait(self) -> None:
        """Begins a wait: the program runs the model's tool calls or does work of its own."""
        self._since = self._now()
        if self._calls and self._events is not None:
            self._events.emit(CallsStarted(self.job.key, self.turns, tuple(call.name for call in self._calls)))
        calls = self._calls or (_PROGRAM,)
        self._waiting.enter_context(self._gate.tool_wait(self.job.key, calls, self._request))

    def _record_calls(self, messages: Sequence[Message]) -> None:
        """Records the results of the model's tool calls."""
        called, self._calls = self._calls, ()
        if not called:
            return
        seconds, results = self._now() - self._since, _results(called, messages)
        records = tuple(
            CallRecord(call.name, call.arguments, not result.is_error, seconds)
            for call, result in zip(called, results, strict=True)
        )
        self.calls += records
        if self._events is not None:
            self._events.emit(CallsEnded(self.job.key, self.turns, records, seconds, results))


class ProgramSessions:
    """The sessions of a run, by agent."""

    def __init__(self, gate: AdmissionController, events: EventSink | None = None) -> None:
        self._gate = gate
        self._events = events
        self._by_agent: dict[str, ProgramSession] = {}

    @contextmanager
    def open(self, job: Job, cancel: Callable[[], object]) -> Iterator[ProgramSession]:
        session = self._by_agent[job.key] = ProgramSession(job, self._gate, self._events, cancel)
        try:
            yield session
        finally:
            del self._by_agent[job.key]
            session.close()

    def get(self, agent: str) -> ProgramSession:
        """Raises BackendError for an agent whose program is not running."""
        session = self._by_agent.get(agent)
        if session is None:
            raise BackendError(ErrorKind.BAD_REQUEST, "This agent's program is not running any more.")
        return session


def _results(calls: Sequence[ToolCall], messages: Sequence[Message]) -> tuple[ToolResult, ...]:
    """Results of the last calls, according to the program; empty if it sent none."""
    last = next((message for message in reversed(messages) if isinstance(message, ToolResults)), ToolResults(()))
    found = {result.call.id: result for result in last.results}
    if len(found) == len(calls) and found.keys().isdisjoint(call.id for call in calls):
        return last.results  # the server's ids were not unique, so the program received others
    return tuple(found.get(call.id, ToolResult(call, "")) for call in calls)
