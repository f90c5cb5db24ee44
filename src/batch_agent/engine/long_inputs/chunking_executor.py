"""Chunking executor: a sub-agent for each part of an oversized input, and one that merges their answers."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

from ... import aio
from ...aio import RunDeadline, is_being_cancelled
from ...core.agent_config import Job
from ...core.coordinator import Completion
from ...core.errors import BackendError, BatchAgentError, ErrorKind
from ...core.facts import CarriedOver, Fact, Started, calls_made
from ...core.protocols.agent_executor import Executor, Slot
from ...core.protocols.store import Store
from ...core.requests import NO_USAGE
from ...core.results import AgentError, AgentResult, Timing
from ...plan.chunks import merge_task
from ..admission import AdmissionController
from .context_window import ContextWindow

_GROUP_GROWTH = 1.3

Leave = Callable[[str], Awaitable[None]]


class _SubAgentFailed(Exception):
    """A sub-agent failed, so the agent fails too."""

    def __init__(self, result: AgentResult) -> None:
        self.result = result


class ChunkingExecutor:
    """Executor that wraps another one, and passes it jobs without parts unchanged. The merging agent has the job's own
    key, so its facts alone restore a finished job. Sub-agents have keys of their own, so that their work is kept
    too."""

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
        """`window`: None if no job has parts. `leave`: called for each finished sub-agent."""
        self._inner = inner
        self._admission = gate
        self._store = store
        self._window = window
        self._room = asyncio.Semaphore(max_dispatched)
        self._leave = leave
        self._deadline = deadline or RunDeadline(None)

    def from_checkpoint(self, job: Job, facts: Sequence[Fact]) -> AgentResult | None:
        return self._inner.from_checkpoint(_recorded_job(job, facts), facts)

    async def complete(self, job: Job, facts: Sequence[Fact], result: AgentResult) -> AgentResult:
        """A result from the checkpoint with the usage of its sub-agents, if it had any."""
        if _recorded_task(facts) in (None, job.task):
            return result
        done = await self._recorded(job)
        seconds = sum(each.timing.total for each in (*done, result))
        return _with_totals(result, [*done, result], seconds) if done else result

    async def from_remote(self, job: Job, facts: Sequence[Fact], completion: Completion) -> AgentResult | None:
        """The result of an agent that ran in another process, with the usage of its sub-agents. None if facts are
        missing."""
        recorded = _recorded_job(job, facts)
        result = await self._inner.from_remote(recorded, facts, completion)
        if result is None or (not job.parts and recorded is job):
            return result
        done = await self._recorded(job)
        return _with_totals(result, [*done, result], completion.seconds) if done else result

    def run(self, job: Job, facts: Sequence[Fact], slot: Slot) -> Awaitable[AgentResult]:
        if job.parts or facts:
            return self._run(job, facts, slot)
        return self._inner.run(job, facts, slot)

    async def _run(self, job: Job, facts: Sequence[Fact], slot: Slot) -> AgentResult:
        if job.parts:
            slot.release()
            self._admission.release(job.key)
            return await self._in_parts(job, facts)
        if _recorded_task(facts) not in (None, job.task) and await self._store.facts(_part_key(job, 1)):
            facts = self._restart(job, facts)  # its input was in parts before, in a smaller window
        return await self._inner.run(job, facts, slot)

    async def _in_parts(self, job: Job, facts: Sequence[Fact]) -> AgentResult:
        now = asyncio.get_running_loop().time
        began = now()
        done: list[AgentResult] = []
        try:
            answers = await self._run_all(_part_jobs(job), "Part", done)
            task = await self._final_merge_task(job, answers, done)
            merging = replace(job, task=task, parts=(), shared=0, references_at=0)
            result = await self._run_agent(merging, self._matching_facts(merging, facts))
        except _SubAgentFailed as failed:
            result = replace(failed.result, index=job.index, key=job.key, input=job.input)
        return _with_totals(result, [*done, result], now() - began)

    async def _final_merge_task(self, job: Job, answers: list[Any], done: list[AgentResult]) -> str:
        """The task of the last merge. Answers that do not fit into one task are merged in groups first, repeatedly."""
        rounds = 0
        while len(groups := await self._groups(job, answers)) > 1:
            rounds += 1
            merged = iter(await self._run_all(_merge_jobs(job, rounds, groups), f"Merge {rounds}, group", done))
            answers = [group[0] if len(group) == 1 else next(merged) for group in groups]
        return merge_task(job.task, len(job.parts), answers)

    async def _groups(self, job: Job, answers: list[Any]) -> list[list[Any]]:
        """The fewest groups of answers that fit the window, and few enough that merging terminates. Raises
        _SubAgentFailed."""
        number, max_groups = 1, (len(answers) + 1) // 2
        while not await self._fit(job, groups := _evenly(answers, number)):
            if number >= max_groups:
                raise _SubAgentFailed(AgentResult(job.index, job.key, job.input, error=self._too_long(job)))
            number = min(max_groups, max(number + 1, int(number * _GROUP_GROWTH)))
        return groups

    async def _fit(self, job: Job, groups: Sequence[Sequence[Any]]) -> bool:
        assert self._window is not None
        for task in _merge_tasks(job, groups):
            if await self._window.oversized_tokens(task, careful=True) is not None:
                return False
        return True

    def _too_long(self, job: Job) -> AgentError:
        message = (
            f"The answers to the {len(job.parts)} parts of input {job.index} are too long to be merged: two of them "
            "do not fit the context window. Ask for shorter answers, or set max_tokens."
        )
        return AgentError(ErrorKind.CONTEXT_OVERFLOW, message)

    async def _run_all(self, jobs: Sequence[Job], name: str, done: list[AgentResult]) -> list[Any]:
        """The answers, in order. Appends the results to `done`. Raises _SubAgentFailed as soon as one fails; the others
        are cancelled, and their facts are kept for the next run."""
        tasks: list[asyncio.Task[AgentResult]] = []
        try:
            async with asyncio.TaskGroup() as group:
                for number, job in enumerate(jobs, 1):
                    tasks.append(group.create_task(self._run_sub_agent(job, f"{name} {number} of {len(jobs)}")))
                await asyncio.wait(tasks)  # a group that fails on exit does not uncancel its parent task (3.11)
        except BaseExceptionGroup as failures:
            if is_being_cancelled():
                raise asyncio.CancelledError from None
            error = aio.unwrap_group(failures, BatchAgentError, _SubAgentFailed)
            raise error from error.__cause__
        finally:
            done += [task.result() for task in tasks if not task.cancelled() and task.exception() is None]
        return [task.result().output for task in tasks]

    async def _run_sub_agent(self, job: Job, name: str) -> AgentResult:
        async with self._room:
            facts = self._matching_facts(job, await self._store.facts(job.key))
            result = self._inner.from_checkpoint(job, facts) if facts else None
            if result is None:
                result = await self._run_agent(job, facts)
                if self._leave is not None:
                    await self._leave(job.key)
        if result.error is not None:
            message = f"{name}: {result.error.message}"
            raise _SubAgentFailed(replace(result, error=replace(result.error, message=message)))
        return result

    async def _run_agent(self, job: Job, facts: Sequence[Fact]) -> AgentResult:
        try:
            async with self._deadline.limit():
                slot = await self._admission.admit(job, facts)
        except BackendError as late:
            return AgentResult(job.index, job.key, job.input, error=AgentError(late.kind, str(late)))
        try:
            return await self._inner.run(job, facts, slot)
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            raise RuntimeError("a task that the agent awaited was cancelled") from error  # a group would ignore it
        finally:
            slot.release()
            self._admission.release(job.key)

    def _matching_facts(self, job: Job, facts: Sequence[Fact]) -> Sequence[Fact]:
        """The facts of the agent if they belong to the same task, which another context window or another answer to a
        part may have changed."""
        return facts if _recorded_task(facts) in (None, job.task) else self._restart(job, facts)

    def _restart(self, job: Job, facts: Sequence[Fact]) -> Sequence[Fact]:
        restarted: list[Fact] = [Started.of(job), CarriedOver(calls_made(facts))]
        self._store.restart(job.key, restarted)
        return restarted

    async def _recorded(self, job: Job) -> list[AgentResult]:
        """Results of all finished sub-agents in the store."""
        done: list[AgentResult] = []
        for rounds in count():
            known = len(done)
            for number in count(1):
                key = _merge_key(job, rounds, number) if rounds else _part_key(job, number)
                facts = await self._store.facts(key)
                if not facts:
                    break
                result = self._inner.from_checkpoint(Job(job.index, key, None, _recorded_task(facts) or ""), facts)
                done += [] if result is None else [result]
            if len(done) == known:
                break
        return done


def _part_key(job: Job, number: int) -> str:
    return f"{job.key}.part{number}"


def _merge_key(job: Job, rounds: int, number: int) -> str:
    return f"{job.key}.merge{rounds}.{number}"


def _part_jobs(job: Job) -> list[Job]:
    prefix = job.task[: job.shared]
    return [
        Job(
            job.index,
            _part_key(job, number),
            f"part {number} of {len(job.parts)}",
            task,
            shared=job.shared if task.startswith(prefix) else 0,
            references_at=job.references_at if task.startswith(prefix) else 0,
        )
        for number, task in enumerate(job.parts, 1)
    ]


def _merge_jobs(job: Job, rounds: int, groups: Sequence[Sequence[Any]]) -> list[Job]:
    return [
        Job(job.index, _merge_key(job, rounds, number), f"merge {number} of round {rounds}", task)
        for number, task in enumerate(_merge_tasks(job, groups), 1)
    ]


def _merge_tasks(job: Job, groups: Sequence[Sequence[Any]]) -> list[str]:
    """Tasks of the groups to merge. A group of one needs no merge, unless it is the only group."""
    return [merge_task(job.task, len(job.parts), group) for group in groups if len(group) > 1 or len(groups) == 1]


def _evenly(answers: Sequence[Any], number: int) -> list[list[Any]]:
    ends = [len(answers) * n // number for n in range(number + 1)]
    return [list(answers[start:end]) for start, end in pairwise(ends)]


def _recorded_job(job: Job, facts: Sequence[Fact]) -> Job:
    """The job with the task of the first fact."""
    task = _recorded_task(facts)
    return job if task in (None, job.task) else replace(job, task=task)


def _recorded_task(facts: Sequence[Fact]) -> str | None:
    """The task in the first fact; None without facts."""
    return facts[0].task if facts and isinstance(facts[0], Started) else None


def _with_totals(result: AgentResult, done: Sequence[AgentResult], seconds: float) -> AgentResult:
    """The result with the totals of all agents."""
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
