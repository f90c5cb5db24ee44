"""Agent loop: runs one agent, turn by turn. A slot is held only while the model generates."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, assert_never

from ..agent.call_state import call_records
from ..agent.compaction import CompactContext
from ..agent.conversation import CallTools, Conversation, Done, Generate
from ..aio import Deadlines, RunDeadline
from ..core.agent_config import AgentConfig, Job
from ..core.coordinator import Completion
from ..core.errors import BackendError, ErrorKind, LeaseLost
from ..core.events import CallsEnded, CallsStarted
from ..core.facts import (
    CarriedOver,
    Claimed,
    Compacted,
    Fact,
    Failed,
    Replied,
    Returned,
    Sampled,
    Settled,
    Started,
    Withdrawn,
    calls_made,
    failure_of,
)
from ..core.fast_dataclass import dataclass
from ..core.messages import ToolCall, ToolResult
from ..core.protocols.agent_executor import Slot
from ..core.protocols.store import Store
from ..core.protocols.tool_set import ToolSession, ToolSet
from ..core.requests import Request
from ..core.results import AgentError, AgentResult
from ..lazy_imports import lazy_modules
from .reply_assembly import OnCall
from .summarizer import Summarizer
from .turn_runner import TurnRunner

with lazy_modules(globals()):  # for tools whose results are shared
    from ..schedule import reference_model

if TYPE_CHECKING:
    from ..schedule.reference_model import Reader, ReadRecorder


@dataclass(frozen=True, slots=True)
class AgentLoop:
    """Runs the agents of a run, which share it."""

    config: AgentConfig
    turns: TurnRunner
    tools: ToolSet
    store: Store
    agent_time: Deadlines
    retry_failed: bool = True
    """Whether to start agents again that failed in an earlier run."""
    summarizer: Summarizer | None = None
    """Summarizes results during a compaction; None: results are elided."""
    deadline: RunDeadline | None = None
    """Deadline of the run, if it is part of `agent_time`."""
    recorded_compaction: Callable[[str, int], Compacted | None] | None = None
    """In a replay: takes the compaction that was recorded before a turn."""
    reads: "ReadRecorder | None" = None
    """Records which shared tool results each agent reads; None without such tools."""
    shared_tools: frozenset[str] = frozenset()
    """Names of the tools whose results may be placed first."""

    def from_checkpoint(self, job: Job, facts: Sequence[Fact]) -> AgentResult | None:
        self.tools.recall(facts)
        return result_from_facts(self.config, job, facts, retry_failed=self.retry_failed)

    async def from_remote(self, job: Job, facts: Sequence[Fact], completion: Completion) -> AgentResult | None:
        conversation = Conversation(self.config, job, has_ended=True)
        conversation.replay(facts)
        if completion.error is not None:
            conversation.fail(completion.error)
        elif not isinstance(conversation.next(), Done):
            return None
        return conversation.result(completion.seconds)

    async def run(self, job: Job, facts: Sequence[Fact], slot: Slot) -> AgentResult:
        task = asyncio.current_task()
        assert task is not None
        now = task.get_loop().time
        started = now()
        conversation = self._continue(job, facts)
        clock = self.agent_time.watch(task)
        agent = _Agent(self, job, slot, task, conversation)
        try:
            with clock:
                while not isinstance(step := conversation.next(), Done):
                    agent.keep(await agent.next(step))
        except BackendError as error:
            conversation.fail(AgentError(error.kind, str(error), error.retryable))
        except TimeoutError:
            if not clock.expired:
                raise
            if self.deadline is not None and self.deadline.has_passed:
                conversation.fail(AgentError(ErrorKind.BUDGET, str(self.deadline.error)))
                return conversation.result(now() - started)
            limit = f"The agent took longer than timeout_per_agent={self.agent_time.limit:g} s."
            conversation.fail(AgentError(ErrorKind.AGENT_TIMEOUT, limit, retryable=True))
        finally:
            slot.release()
            try:
                if self.config.starts_early:
                    await agent.abandon()
            finally:
                agent.end()
        if self.reads is not None:
            self.reads.add(self._reader(conversation) if self.reads.is_open else None)
        return conversation.result(now() - started)

    def _reader(self, conversation: Conversation) -> "Reader":
        return reference_model.reader_of(conversation.own_chars, conversation.tool_turns(), self.shared_tools)

    def _continue(self, job: Job, facts: Sequence[Fact]) -> Conversation:
        """The conversation so far. One that had failed starts again, and replies that were truncated by a smaller
        max_tokens are requested again."""
        conversation = Conversation(self.config, job)
        if not facts:
            self.store.record(job.key, Started.of(job))
        elif (whole := without_truncated_replies(self.config, facts)) is not facts:
            self.store.restart(job.key, whole)
            facts = whole
        conversation.replay(facts)
        if facts and isinstance(conversation.next(), Done):
            conversation = Conversation(self.config, job)
            restarted: list[Fact] = [Started.of(job), CarriedOver(calls_made(facts))]
            self.store.restart(job.key, restarted)
            conversation.replay(restarted)
        return conversation


_PERMANENT = frozenset({ErrorKind.BAD_REQUEST, ErrorKind.CONTEXT_OVERFLOW})
"""Failures that the same request would meet again. Other failures from outside the conversation depend on the server's
state, on a limit or on the user's code, so a resumed run continues the agent."""


_FINAL = frozenset({ErrorKind.CANCELLED})
"""Errors after which no run tries the agent again."""


def result_from_facts(
    config: AgentConfig, job: Job, facts: Sequence[Fact], *, retry_failed: bool
) -> AgentResult | None:
    """The result of a finished agent, or None if the agent has to continue: it has not finished, it failed and is to be
    retried, or its answer was truncated and max_tokens is larger now."""
    conversation = Conversation(config, job)
    conversation.replay(facts)
    step = conversation.next()
    failed = failure_of(facts)
    if failed is not None and (failed.error.kind in _FINAL or (failed.error.kind in _PERMANENT and not retry_failed)):
        conversation.fail(failed.error)
        return conversation.result(failed.seconds)
    if not isinstance(step, Done) or (step.error is not None and retry_failed and job.problem is None):
        return None
    if without_truncated_replies(config, facts) is not facts and (step.error is not None or config.output is None):
        return None
    return conversation.result(sum(fact.seconds for fact in facts if isinstance(fact, Replied | Returned | Compacted)))


def without_truncated_replies(config: AgentConfig, facts: Sequence[Fact]) -> Sequence[Fact]:
    """The facts without the replies at their end that a smaller max_tokens than the current one has truncated. Returns
    the same object if there are none."""
    max_tokens, kept = config.sampling.max_tokens, len(facts)
    has_truncated = False
    while kept and (isinstance(facts[kept - 1], Failed | Sampled) or _is_truncated_below(facts[kept - 1], max_tokens)):
        kept -= 1
        has_truncated = has_truncated or not isinstance(facts[kept], Failed | Sampled)
    return facts[:kept] if has_truncated else facts


def _is_truncated_below(fact: Fact, max_tokens: int | None) -> bool:
    return isinstance(fact, Replied) and fact.cut_at is not None and (max_tokens is None or fact.cut_at < max_tokens)


class _Agent:
    """State of a running agent, and the journal of its calls."""

    __slots__ = ("_conversation", "_job", "_now", "_request", "_run", "_session", "_slot", "_task")

    def __init__(
        self, run: AgentLoop, job: Job, slot: Slot, task: "asyncio.Task[Any]", conversation: Conversation
    ) -> None:
        self._run = run
        self._job = job
        self._task = task
        self._now = task.get_loop().time
        self._slot: Slot | None = slot
        self._session: ToolSession | None = None
        self._conversation = conversation
        self._request: Request | None = None

    def next(self, step: Generate | CallTools | CompactContext) -> Awaitable[Fact]:
        """Runs a step, and returns the fact that it produces."""
        match step:
            case Generate():
                return self._turn(step) if self._run.recorded_compaction is None else self._replayed(step)
            case CallTools():
                return self._call(step)
            case CompactContext():
                return self._compact(step)
            case _:
                assert_never(step)

    async def claim(self, call: ToolCall) -> None:
        self.keep(Claimed(call))
        store = self._run.store
        if store.is_durable:
            await store.settle(self._job.key, sync=True)

    def withdraw(self, call: ToolCall) -> None:
        with suppress(LeaseLost):  # the worker that leases it now finds the claim, and reports its outcome as unknown
            self.keep(Withdrawn(call))

    @property
    def is_durable(self) -> bool:
        return self._run.store.is_durable

    async def identity(self) -> str:
        return await self._run.store.identity()

    def settle(self, result: ToolResult) -> None:
        self.keep(Settled(result))

    def keep(self, fact: Fact) -> None:
        self._run.store.record(self._job.key, fact)
        self._conversation.apply(fact)
        if self._conversation.has_references and isinstance(fact, Returned | Compacted):
            self._run.turns.admission.on_references(self._job.key, self._conversation.references)

    async def abandon(self) -> None:
        """Cancels calls that were started early, for a reply that was never completed."""
        if self._session is not None:
            await self._session.abandon()

    def end(self) -> None:
        """Drops the session, which refers back to this agent as its journal. Without this, each agent, its task and its
        conversation would be a cycle that lives until the garbage collector finds it."""
        self._session = None

    def _placed(self, results: tuple[ToolResult, ...]) -> tuple[ToolResult, ...]:
        """The results, each with its position in the prompt."""
        computations = self._run.turns.admission.expected_computations(sum(len(each.content) for each in results))
        return self._conversation.place(results, self._tools().expected_readers, computations)

    async def _call(self, step: CallTools) -> Returned:
        self._release_slot()  # of an agent that was resumed during its tool calls
        started = self._now()
        key, turns = self._job.key, self._run.turns
        if turns.events is not None:
            turns.events.emit(CallsStarted(key, step.past.turn, tuple(call.name for call in step.calls)))
        with turns.admission.tool_wait(key, step.calls, self._request):
            results = await self._tools().results(step.calls, step.past)
        for result in results:
            if result.reference is not None:
                results = self._placed(results)
                break
        fact = Returned(results, self._now() - started)
        if turns.events is not None:
            turns.events.emit(CallsEnded(key, step.past.turn, call_records(results), fact.seconds, results))
        return fact

    def _release_slot(self) -> None:
        if self._slot is not None:
            self._slot.release()
            self._slot = None

    async def _compact(self, step: CompactContext) -> Compacted:
        """Never fails: results that cannot be summarized are elided."""
        run, started = self._run, self._now()
        summaries: Mapping[int, str] = {}
        wanted = [each for each in step.results if each.summary_tokens]
        if wanted and run.summarizer is not None:
            self._release_slot()  # of an agent that was resumed here: summaries need slots of their own
            texts = {each.output.index: (each.output.content, each.summary_tokens) for each in wanted}
            model = run.config.compaction.model if run.config.compaction else None
            summaries = await run.summarizer.summaries(texts, model, run.turns.turn_time.limit)
        fact = step.done(summaries, self._now() - started)
        run.turns.admission.on_compaction(self._job.key, fact)
        return fact

    async def _replayed(self, step: Generate) -> Fact:
        """The step of a replay: the compaction that was recorded before this turn if there is one, else the turn."""
        assert self._run.recorded_compaction is not None
        return self._run.recorded_compaction(self._job.key, step.request.turn) or await self._turn(step)

    def _tools(self) -> ToolSession:
        if self._session is None:
            self._session = self._run.tools.session(self._job.key, self, self._job)
        return self._session

    def _turn(self, step: Generate) -> Awaitable[Replied]:
        self._request = step.request
        slot, self._slot = self._slot, None
        on_attempt = self._on_attempt if self._run.config.starts_early else None
        return self._run.turns.turn(self._job, step, slot, self._task, on_attempt)

    async def _on_attempt(self, request: Request) -> OnCall | None:
        """Called before each attempt of a turn: cancels the calls of an earlier attempt. Returns a callback that starts
        calls while the model is still generating."""
        await self.abandon()
        if not request.may_call_tools:
            return None
        positions = itertools.count()
        return lambda call: self._tools().start(next(positions), call)
