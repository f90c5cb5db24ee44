"""Agents whose programs are at work, as their requests show them."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ..core.agent_config import Job
from ..core.errors import BackendError, ErrorKind
from ..core.events import CallsEnded, CallsStarted
from ..core.messages import Assistant, Message, ToolCall, ToolResults
from ..core.program_runtime import CompletionRequest
from ..core.protocols import EventSink
from ..core.requests import NO_USAGE, Reply, Request
from ..core.results import CallRecord
from ..core.run_failure import RunStopped
from ..engine.admission import AdmissionController

_PROGRAM = ToolCall("", "(program)", "")
"""What an agent waits for while its program neither asks nor runs a tool that it was told to."""


_MOST_FAILURES = 3


class ProgramSession:
    """One agent, while its program works on what it was told. Between its requests it has no slot, and its place in the
    server's cache only on lease, as any agent that waits for its tools."""

    def __init__(
        self, job: Job, gate: AdmissionController, events: EventSink | None, call_off: Callable[[], object]
    ) -> None:
        """`call_off` ends the program's work."""
        self.job = job
        self.turns = 0
        self.usage = NO_USAGE
        self.queued = 0.0
        self.calls: list[CallRecord] = []
        self.transcript: tuple[Message, ...] = ()
        self.refusal: BackendError | None = None
        """What its last request came to, if that was nothing."""
        self.failures = 0
        """Requests of it in a row that the server did not answer, though each was retried."""
        self.end: BackendError | RunStopped | None = None
        """Why its program was called off."""
        self._gate = gate
        self._events = events
        self._call_off = call_off
        self._now = asyncio.get_running_loop().time
        self._waiting = ExitStack()
        self._called: tuple[ToolCall, ...] = ()
        self._request: Request | None = None
        self._since = 0.0
        self._asking = 0
        self._wait()

    def stop(self, error: BackendError | RunStopped) -> None:
        """No request of this program can be answered any more."""
        if self.end is None:
            self.end = error
            self._call_off()

    def refused(self, error: BackendError) -> None:
        """A request of it came to nothing. Many programs send it again on their own, some for ever; a server that fails
        each time is not asked for longer than that."""
        self.refusal = error
        self.failures += error.retryable
        if error.kind in (ErrorKind.BUDGET, ErrorKind.MAX_TURNS) or self.failures >= _MOST_FAILURES:
            self.stop(error)

    @contextmanager
    def asking(self, asked: CompletionRequest) -> Iterator[bool]:
        """While a request of it is under way. Whether it is the only one."""
        is_alone, self._asking = not self._asking, self._asking + 1
        if is_alone:
            self._waiting.close()
            self._heard_back(asked.messages)
        try:
            yield is_alone
        finally:
            self._asking -= 1
            if is_alone:
                self._wait()

    def answered(self, asked: CompletionRequest, request: Request, reply: Reply, queued: float) -> None:
        self.refusal = None
        self.turns += 1
        self.usage += reply.usage
        self.queued += queued
        self._called, self._request = (*self._called, *reply.calls), request
        if asked.tools or not self.transcript:  # without any it is a title or the like, not the work itself
            self.transcript = (*asked.messages, Assistant(reply.text, reply.calls, reply.thoughts))

    def leave(self) -> None:
        """Its program is done."""
        self._waiting.close()

    def _wait(self) -> None:
        """Its program runs what the model has called, or does something of its own."""
        self._since = self._now()
        if self._called and self._events is not None:
            self._events.emit(CallsStarted(self.job.key, self.turns, tuple(call.name for call in self._called)))
        calls = self._called or (_PROGRAM,)
        self._waiting.enter_context(self._gate.while_waiting(self.job.key, calls, self._request))

    def _heard_back(self, messages: Sequence[Message]) -> None:
        """What the program made of the calls that the model asked for."""
        called, self._called = self._called, ()
        if not called:
            return
        seconds, failed = self._now() - self._since, _failed(messages)
        records = tuple(CallRecord(call.name, call.arguments, call.id not in failed, seconds) for call in called)
        self.calls += records
        if self._events is not None:
            self._events.emit(CallsEnded(self.job.key, self.turns, records, seconds))


class ProgramSessions:
    """All of a run, by agent."""

    def __init__(self, gate: AdmissionController, events: EventSink | None = None) -> None:
        self._gate = gate
        self._events = events
        self._under_way: dict[str, ProgramSession] = {}

    @contextmanager
    def open(self, job: Job, call_off: Callable[[], object]) -> Iterator[ProgramSession]:
        visit = self._under_way[job.key] = ProgramSession(job, self._gate, self._events, call_off)
        try:
            yield visit
        finally:
            del self._under_way[job.key]
            visit.leave()

    def of(self, agent: str) -> ProgramSession:
        """Raises BackendError for an agent that is not at work."""
        visit = self._under_way.get(agent)
        if visit is None:
            raise BackendError(ErrorKind.BAD_REQUEST, "This agent is not at work any more.")
        return visit


def _failed(messages: Sequence[Message]) -> set[str]:
    """The ids of the last calls that came to nothing, as far as the program says so."""
    last = next((message for message in reversed(messages) if isinstance(message, ToolResults)), None)
    return set() if last is None else {result.call.id for result in last.results if result.is_error}
