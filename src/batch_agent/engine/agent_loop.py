"""The ordinary executor: one agent, turn by turn. A slot is held only while the model generates."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, assert_never

from .. import aio
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
    Replied,
    Returned,
    Settled,
    Started,
    Withdrawn,
    calls_made,
)
from ..core.fast_dataclass import dataclass
from ..core.messages import ToolCall, ToolResult
from ..core.protocols import Slot, Store, ToolSession, ToolSet
from ..core.requests import Request
from ..core.results import AgentError, AgentResult
from .reply_assembly import OnCall
from .summarizer import Summarizer
from .turn_runner import TurnRunner


@dataclass(frozen=True, slots=True)
class AgentLoop:
    """Runs agents under the rules of one run. All of them share what is given here."""

    rules: AgentConfig
    asking: TurnRunner
    tools: ToolSet
    store: Store
    agent_time: Deadlines
    retry_failed: bool = True
    """Whether agents that failed for good in an earlier run start again."""
    summarizer: Summarizer | None = None
    """Who makes the summaries of a compaction; without one, results are elided."""
    deadline: RunDeadline | None = None
    """Of the run, as far as it is part of `agent_time`."""
    compacted: Callable[[str, int], Compacted | None] | None = None
    """In a replay: the compaction that was recorded before a turn, given once."""

    def from_checkpoint(self, job: Job, facts: Sequence[Fact]) -> AgentResult | None:
        return recalled(self.rules, job, facts, retry_failed=self.retry_failed)

    async def from_remote(self, job: Job, facts: Sequence[Fact], completion: Completion) -> AgentResult | None:
        talk = Conversation(self.rules, job)
        talk.replay(facts)
        if completion.error is not None:
            talk.fail(completion.error)
        elif not isinstance(talk.next(), Done):
            return None
        return talk.result(completion.seconds)

    async def run(self, job: Job, facts: Sequence[Fact], slot: Slot) -> AgentResult:
        task = asyncio.current_task()
        assert task is not None
        now = task.get_loop().time
        started = now()
        talk = self._continue(job, facts)
        clock = self.agent_time.watch(task)
        agent = _Agent(self, job, slot, task, talk)
        try:
            with clock:
                while not isinstance(step := talk.next(), Done):
                    agent.keep(await agent.next(step))
        except BackendError as error:
            talk.fail(AgentError(error.kind, str(error), error.retryable))
        except TimeoutError:
            if not clock.expired:
                raise
            if self.deadline is not None and self.deadline.has_passed:
                talk.fail(AgentError(ErrorKind.BUDGET, str(self.deadline.error)))
                return talk.result(now() - started)
            limit = f"The agent took longer than timeout_per_agent={self.agent_time.limit:g} s."
            talk.fail(AgentError(ErrorKind.AGENT_TIMEOUT, limit, retryable=True))
        finally:
            slot.release()
            if self.rules.starts_early:
                await agent.abandon()
        return talk.result(now() - started)

    def _continue(self, job: Job, facts: Sequence[Fact]) -> Conversation:
        """The conversation as far as it went; one that had failed for good starts again. What was cut off where there
        is more room now is asked again."""
        talk = Conversation(self.rules, job)
        if not facts:
            self.store.record(job.key, Started(job.index, job.input, job.task))
        elif (whole := without_cut(self.rules, facts)) is not facts:
            self.store.restart(job.key, whole)
            facts = whole
        talk.replay(facts)
        if facts and isinstance(talk.next(), Done):
            talk = Conversation(self.rules, job)
            anew: list[Fact] = [Started(job.index, job.input, job.task), CarriedOver(calls_made(facts))]
            self.store.restart(job.key, anew)
            talk.replay(anew)
        return talk


def recalled(rules: AgentConfig, job: Job, facts: Sequence[Fact], *, retry_failed: bool) -> AgentResult | None:
    """The result of an agent that needs no more work, or None: one that failed, or whose answer was cut off, goes on
    where there is more room than there was."""
    talk = Conversation(rules, job)
    talk.replay(facts)
    step = talk.next()
    if not isinstance(step, Done) or (step.error is not None and retry_failed and job.problem is None):
        return None
    if without_cut(rules, facts) is not facts and (step.error is not None or rules.output is None):
        return None
    return talk.result(sum(fact.seconds for fact in facts if isinstance(fact, Replied | Returned | Compacted)))


def without_cut(rules: AgentConfig, facts: Sequence[Fact]) -> Sequence[Fact]:
    """The story without replies at its end that were cut off by a smaller max_tokens than that of today; the same
    where there are none."""
    most, kept = rules.sampling.max_tokens, len(facts)
    while kept and _is_cut_below(facts[kept - 1], most):
        kept -= 1
    return facts if kept == len(facts) else facts[:kept]


def _is_cut_below(fact: Fact, most: int | None) -> bool:
    return isinstance(fact, Replied) and fact.cut_at is not None and (most is None or fact.cut_at < most)


class _Agent:
    """One agent under way: what it holds between its turns. It is also the journal of its calls."""

    __slots__ = ("_asked", "_job", "_now", "_run", "_session", "_slot", "_talk", "_task")

    def __init__(self, run: AgentLoop, job: Job, slot: Slot, task: "asyncio.Task[Any]", talk: Conversation) -> None:
        self._run = run
        self._job = job
        self._task = task
        self._now = task.get_loop().time
        self._slot: Slot | None = slot
        self._session: ToolSession | None = None
        self._talk = talk
        self._asked: Request | None = None

    def next(self, step: Generate | CallTools | CompactContext) -> Awaitable[Fact]:
        """What comes of a step."""
        match step:
            case Generate():
                recorded = self._recorded_compaction(step)
                return self._turn(step) if recorded is None else _known(recorded)
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
        with suppress(LeaseLost):  # the worker that has it by now finds the claim, and reports it as unknown
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
        self._talk.apply(fact)

    async def abandon(self) -> None:
        """Calls off what was started for an answer that came to nothing."""
        if self._session is not None:
            await self._session.abandon()

    async def _call(self, step: CallTools) -> Returned:
        self._give_slot_back()  # resumed while it waited for its tools
        started = self._now()
        key, asking = self._job.key, self._run.asking
        if asking.events is not None:
            asking.events.emit(CallsStarted(key, step.past.turn, tuple(call.name for call in step.calls)))
        with asking.gate.while_waiting(key, step.calls, self._asked), aio.ungrouped():
            results = await self._tools().results(step.calls, step.past)
        fact = Returned(results, self._now() - started)
        if asking.events is not None:
            asking.events.emit(CallsEnded(key, step.past.turn, call_records(results), fact.seconds))
        return fact

    def _give_slot_back(self) -> None:
        if self._slot is not None:
            self._slot.release()
            self._slot = None

    async def _compact(self, step: CompactContext) -> Compacted:
        """Never fails: what cannot be summarised is elided."""
        run, started = self._run, self._now()
        summaries: Mapping[int, str] = {}
        wanted = [each for each in step.results if each.summary_tokens]
        if wanted and run.summarizer is not None:
            self._give_slot_back()  # resumed in the middle of it: summaries need slots of their own
            texts = {each.output.index: (each.output.content, each.summary_tokens) for each in wanted}
            model = run.rules.compaction.model if run.rules.compaction else None
            summaries = await run.summarizer.summaries(texts, model, run.asking.turn_time.limit)
        fact = step.done(summaries, self._now() - started)
        run.asking.gate.compacted(self._job.key, fact)
        return fact

    def _recorded_compaction(self, step: Generate) -> Compacted | None:
        recorded = self._run.compacted
        return None if recorded is None else recorded(self._job.key, step.request.turn)

    def _tools(self) -> ToolSession:
        if self._session is None:
            self._session = self._run.tools.session(self._job.key, self)
        return self._session

    def _turn(self, step: Generate) -> Awaitable[Replied]:
        self._asked = step.request
        slot, self._slot = self._slot, None
        begin = self._begin if self._run.rules.starts_early else None
        return self._run.asking.turn(self._job, step, slot, self._task, begin)

    async def _begin(self, request: Request) -> OnCall | None:
        """Before each try of a turn: what an earlier one started is called off, and calls are started while the model
        still speaks."""
        await self.abandon()
        if not request.may_call_tools:
            return None
        positions = itertools.count()
        return lambda call: self._tools().start(next(positions), call)


async def _known(fact: Fact) -> Fact:
    return fact
