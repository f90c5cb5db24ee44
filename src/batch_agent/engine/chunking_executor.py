"""The executor of inputs in parts: a sub-agent for each part, and one that makes their answers into one."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

from .. import aio
from ..aio import RunDeadline, is_being_cancelled
from ..core.agent_config import Job
from ..core.coordinator import Completion
from ..core.errors import BackendError, BatchAgentError, ErrorKind
from ..core.facts import CarriedOver, Fact, Started, calls_made
from ..core.protocols import Executor, Slot, Store
from ..core.requests import NO_USAGE
from ..core.results import AgentError, AgentResult, Timing
from ..plan.chunks import merge_task
from .admission import AdmissionController
from .context_window import ContextWindow

_MORE_GROUPS = 1.3

Leave = Callable[[str], Awaitable[None]]


class _SubAgentFailed(Exception):
    """One of the sub-agents has no answer, so the agent has none either."""

    def __init__(self, result: AgentResult) -> None:
        self.result = result


class ChunkingExecutor:
    """Jobs without parts go straight through to the ordinary executor. The agent that merges has the job's own key:
    once it is done, nothing else is needed. The others have keys of their own, so that what they did is kept too."""

    def __init__(
        self,
        inner: Executor,
        gate: AdmissionController,
        store: Store,
        window: ContextWindow | None,
        *,
        max_dispatched: int,
        leave: Leave | None = None,
        deadline: RunDeadline | None = None,
    ) -> None:
        """`window`: None where no job has parts. `leave` hears of each sub-agent that is done."""
        self._inner = inner
        self._gate = gate
        self._store = store
        self._window = window
        self._room = asyncio.Semaphore(max_dispatched)
        self._leave = leave
        self._deadline = deadline or RunDeadline(None)

    def from_checkpoint(self, job: Job, facts: Sequence[Fact]) -> AgentResult | None:
        asked = _asked(facts)
        return self._inner.from_checkpoint(job if asked is None else replace(job, task=asked), facts)

    async def complete(self, job: Job, facts: Sequence[Fact], result: AgentResult) -> AgentResult:
        """A recalled result, with what the sub-agents took, if there were any."""
        if _asked(facts) in (None, job.task):
            return result
        done = await self._recorded(job)
        seconds = sum(each.timing.total for each in (*done, result))
        return _summed(result, [*done, result], seconds) if done else result

    async def from_remote(self, job: Job, facts: Sequence[Fact], completion: Completion) -> AgentResult | None:
        """The result of an agent that ended elsewhere, with what its sub-agents took. None where the facts are not all
        there."""
        asked = _asked(facts)
        told = await self._inner.from_remote(job if asked is None else replace(job, task=asked), facts, completion)
        if told is None or (not job.parts and asked in (None, job.task)):
            return told
        done = await self._recorded(job)
        return _summed(told, [*done, told], completion.seconds) if done else told

    def run(self, job: Job, facts: Sequence[Fact], slot: Slot) -> Awaitable[AgentResult]:
        if job.parts or facts:
            return self._run(job, facts, slot)
        return self._inner.run(job, facts, slot)

    async def _run(self, job: Job, facts: Sequence[Fact], slot: Slot) -> AgentResult:
        if job.parts:
            slot.release()
            self._gate.leave(job.key)
            return await self._in_parts(job, facts)
        if _asked(facts) not in (None, job.task) and await self._store.facts(_part_key(job, 1)):
            facts = self._anew(job, facts)  # it was in parts before, in a smaller window
        return await self._inner.run(job, facts, slot)

    async def _in_parts(self, job: Job, facts: Sequence[Fact]) -> AgentResult:
        now = asyncio.get_running_loop().time
        began = now()
        done: list[AgentResult] = []
        try:
            answers = await self._ask_all(_part_jobs(job), "Part", done)
            merging = replace(job, task=await self._one_task(job, answers, done), parts=(), shared=0)
            result = await self._live(merging, self._story(merging, facts))
        except _SubAgentFailed as failed:
            result = replace(failed.result, index=job.index, key=job.key, input=job.input)
        return _summed(result, [*done, result], now() - began)

    async def _one_task(self, job: Job, answers: list[Any], done: list[AgentResult]) -> str:
        """The task of the last merge. Answers that do not fit it together are merged in groups first, and so on."""
        rounds = 0
        while len(groups := await self._groups(job, answers)) > 1:
            rounds += 1
            merged = iter(await self._ask_all(_merge_jobs(job, rounds, groups), f"Merge {rounds}, group", done))
            answers = [group[0] if len(group) == 1 else next(merged) for group in groups]
        return merge_task(job.task, len(job.parts), answers)

    async def _groups(self, job: Job, answers: list[Any]) -> list[list[Any]]:
        """As few groups of answers as fit the window, and few enough to come to an end. Raises _SubAgentFailed."""
        number, most = 1, (len(answers) + 1) // 2
        while not await self._fit(job, groups := _evenly(answers, number)):
            if number >= most:
                raise _SubAgentFailed(AgentResult(job.index, job.key, job.input, error=self._too_long(job)))
            number = min(most, max(number + 1, int(number * _MORE_GROUPS)))
        return groups

    async def _fit(self, job: Job, groups: Sequence[Sequence[Any]]) -> bool:
        assert self._window is not None
        for task in _merge_tasks(job, groups):
            if await self._window.overflow(task, careful=True) is not None:
                return False
        return True

    def _too_long(self, job: Job) -> AgentError:
        message = (
            f"The answers to the {len(job.parts)} parts of input {job.index} are too long to be merged: two of them "
            "do not fit the model's window. Ask for shorter answers, or set max_tokens."
        )
        return AgentError(ErrorKind.CONTEXT_OVERFLOW, message)

    async def _ask_all(self, jobs: Sequence[Job], name: str, done: list[AgentResult]) -> list[Any]:
        """The answers, in order; what the agents took goes to `done`. Raises _SubAgentFailed as soon as one has failed:
        the others are called off, and what they said is kept for the next run."""
        asked: list[asyncio.Task[AgentResult]] = []
        try:
            async with asyncio.TaskGroup() as group:
                for number, job in enumerate(jobs, 1):
                    asked.append(group.create_task(self._ask(job, f"{name} {number} of {len(jobs)}")))
                await asyncio.wait(asked)  # a group that fails while it is left does not take its cancel() back (3.11)
        except BaseExceptionGroup as failures:
            if is_being_cancelled():
                raise asyncio.CancelledError from None
            raise aio.unwrap_group(failures, BatchAgentError, _SubAgentFailed) from None
        finally:
            done += [task.result() for task in asked if not task.cancelled() and task.exception() is None]
        return [task.result().output for task in asked]

    async def _ask(self, job: Job, name: str) -> AgentResult:
        async with self._room:
            facts = self._story(job, await self._store.facts(job.key))
            result = self._inner.from_checkpoint(job, facts) if facts else None
            if result is None:
                result = await self._live(job, facts)
                if self._leave is not None:
                    await self._leave(job.key)
        if result.error is not None:
            message = f"{name}: {result.error.message}"
            raise _SubAgentFailed(replace(result, error=replace(result.error, message=message)))
        return result

    async def _live(self, job: Job, facts: Sequence[Fact]) -> AgentResult:
        try:
            async with self._deadline.limit():
                slot = await self._gate.first_turn(job, facts)
        except BackendError as late:
            return AgentResult(job.index, job.key, job.input, error=AgentError(late.kind, str(late)))
        try:
            return await self._inner.run(job, facts, slot)
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            raise RuntimeError("something that the agent called was cancelled") from error  # a group would not see it
        finally:
            slot.release()
            self._gate.leave(job.key)

    def _story(self, job: Job, facts: Sequence[Fact]) -> Sequence[Fact]:
        """What is known of the agent, if it was asked the same: another window, or another answer to a part, may have
        made it another question."""
        return facts if _asked(facts) in (None, job.task) else self._anew(job, facts)

    def _anew(self, job: Job, facts: Sequence[Fact]) -> Sequence[Fact]:
        anew: list[Fact] = [Started(job.index, job.input, job.task), CarriedOver(calls_made(facts))]
        self._store.restart(job.key, anew)
        return anew

    async def _recorded(self, job: Job) -> list[AgentResult]:
        """The results of all sub-agents of which there are facts."""
        done: list[AgentResult] = []
        for rounds in count():
            known = len(done)
            for number in count(1):
                key = _merge_key(job, rounds, number) if rounds else _part_key(job, number)
                facts = await self._store.facts(key)
                if not facts:
                    break
                result = self._inner.from_checkpoint(Job(job.index, key, None, _asked(facts) or ""), facts)
                done += [] if result is None else [result]
            if len(done) == known:
                break
        return done


def _part_key(job: Job, number: int) -> str:
    return f"{job.key}.part{number}"


def _merge_key(job: Job, rounds: int, number: int) -> str:
    return f"{job.key}.merge{rounds}.{number}"


def _part_jobs(job: Job) -> list[Job]:
    begins = job.task[: job.shared]
    return [
        Job(
            job.index,
            _part_key(job, number),
            f"part {number} of {len(job.parts)}",
            task,
            shared=job.shared if task.startswith(begins) else 0,
        )
        for number, task in enumerate(job.parts, 1)
    ]


def _merge_jobs(job: Job, rounds: int, groups: Sequence[Sequence[Any]]) -> list[Job]:
    return [
        Job(job.index, _merge_key(job, rounds, number), f"merge {number} of round {rounds}", task)
        for number, task in enumerate(_merge_tasks(job, groups), 1)
    ]


def _merge_tasks(job: Job, groups: Sequence[Sequence[Any]]) -> list[str]:
    """A group of one has nothing to merge, unless it is all there is."""
    return [merge_task(job.task, len(job.parts), group) for group in groups if len(group) > 1 or len(groups) == 1]


def _evenly(answers: Sequence[Any], number: int) -> list[list[Any]]:
    ends = [len(answers) * n // number for n in range(number + 1)]
    return [list(answers[start:end]) for start, end in pairwise(ends)]


def _asked(facts: Sequence[Fact]) -> str | None:
    """The task that a story begins with; None where there is no story."""
    return facts[0].task if facts and isinstance(facts[0], Started) else None


def _summed(result: AgentResult, done: Sequence[AgentResult], seconds: float) -> AgentResult:
    """The result with what all agents took together."""
    return replace(
        result,
        usage=sum((each.usage for each in done), NO_USAGE),
        turns=sum(each.turns for each in done),
        tool_calls=tuple(call for each in done for call in each.tool_calls),
        timing=Timing(
            sum(each.timing.queued for each in done),
            tuple(ttft for each in done for ttft in each.timing.ttft),
            seconds,
        ),
        compactions=sum(each.compactions for each in done),
    )
