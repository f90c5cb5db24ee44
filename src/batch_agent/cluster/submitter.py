"""Submitter of a distributed run: submits the inputs as jobs and collects their results."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from .. import aio
from ..aio import RunDeadline
from ..core.agent_config import Job
from ..core.coordinator import Completion, Updates
from ..core.errors import ErrorKind, LeaseLost, StoreError
from ..core.events import AgentFinished
from ..core.facts import Fact
from ..core.protocols.agent_executor import WorkSource
from ..core.protocols.event_sink import EventSink
from ..core.results import AgentError, AgentResult
from ..engine.engine import Deliver, Engine, Fit
from ..plan.row_keys import row_key
from .cluster_session import ClusterSession
from .leased_source import LeasedSource

_MAX_OUTSTANDING = 20_000
"""Maximum number of jobs that are submitted but not delivered. Later inputs are read when there is room."""
_MAX_BATCH = 256
_GRACE = 1.0
"""Seconds after the deadline to wait for the results of agents that have ended."""

T = TypeVar("T")

Rebuild = Callable[[Job, Sequence[Fact], Completion], Awaitable[AgentResult | None]]
"""Rebuilds the result of an agent from its facts and completion; None if the facts have no end."""


class Submitter:
    """Turns every input into exactly one delivered result, from any worker."""

    def __init__(
        self,
        session: ClusterSession,
        inputs: WorkSource,
        fit: Fit | None,
        rebuild: Rebuild,
        deliver: Deliver,
        events: EventSink | None,
        deadline: RunDeadline,
        close: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """`close`: called when every input has its result; returns False if there are further inputs, announced by
        `read_more`."""
        self._session = session
        self._close = close
        self._deadline = deadline
        self._waiting: asyncio.Timeout | None = None
        """Timeout of the current wait, which ends at the deadline."""
        deadline.observe(self._on_deadline_moved)
        self._inputs = inputs
        self._fit = fit
        self._rebuild = rebuild
        self._deliver = deliver
        self._events = events
        self._outstanding: dict[str, Job] = {}
        """Jobs that have not been delivered."""
        self._local_results: dict[str, AgentResult] = {}
        """Results of agents that ended in this process, until the coordinator reports them."""
        self._to_submit: asyncio.Queue[Job] = asyncio.Queue()
        self._ended: asyncio.Queue[tuple[Sequence[Completion], bool]] = asyncio.Queue()
        """Completions, with whether they had ended before this run. An empty sequence means that all inputs are
        read."""
        self._room = asyncio.Semaphore(_MAX_OUTSTANDING)
        self._is_read = False
        """Whether the inputs are exhausted or have raised."""
        self._failure: Exception | None = None
        """The exception that the inputs raised."""
        self._has_more = asyncio.Event()
        self.has_all_results = False
        """Whether every input has the result of its agent. False if the deadline came first."""

    async def finished_here(self, result: AgentResult) -> None:
        """Handles an agent that ended in this process, whose input may belong to another submitter. Raises
        StoreError."""
        if result.key in self._outstanding:
            self._local_results[result.key] = result
        try:
            await self._session.end(result)
        except LeaseLost:
            self._local_results.pop(result.key, None)

    def read_more(self) -> None:
        """Resumes reading, because there are further inputs."""
        self._is_read = self._failure is not None
        self._has_more.set()

    async def collect(self) -> None:
        """Returns when every input has its result. Raises StoreError and, after the outstanding results are delivered,
        the exception of the inputs."""
        session = self._session
        session.member.on_updates(self._read)
        with aio.ungrouped():
            async with session.submitters.present(session.member.name), asyncio.TaskGroup() as group:
                reading = group.create_task(self._read_all())
                submitting = group.create_task(self._submit_all())
                is_done = await self._deliver_all()
                submitting.cancel()
                reading.cancel()
        if not is_done:
            await self._fail_remaining()
        elif self._failure is not None:
            raise self._failure
        self.has_all_results = is_done

    async def _read_all(self) -> None:
        """Reads inputs while there is room, including inputs that are added later, until they raise."""
        while self._failure is None:
            await self._room.acquire()
            try:
                job = await self._inputs.take()
            except Exception as error:  # noqa: BLE001 - the user's iterator; outstanding agents are finished first
                job, self._failure = None, error
            if job is None:
                self._is_read = True
                self._has_more.clear()
                self._room.release()
                self._ended.put_nowait(((), False))
                await self._has_more.wait()
                continue
            if self._fit is not None and job.problem is None:
                job = await self._fit(job)
            if job.problem is not None:
                failed = AgentResult(job.index, job.key, job.input, error=job.problem)
                await self._session.reject([failed])
                await self._finish(failed, resumed=False)
            else:
                self._outstanding[job.key] = job
                self._to_submit.put_nowait(job)

    async def _submit_all(self) -> None:
        """Submits, in batches, the jobs that have arrived meanwhile."""
        while True:  # until everything is delivered
            jobs = [await self._to_submit.get(), *islice(_available(self._to_submit), _MAX_BATCH)]
            if known := await self._session.submit(jobs):
                self._ended.put_nowait((list(known.values()), True))

    async def _deliver_all(self) -> bool:
        """Delivers all results. Returns False if the deadline came first."""
        while self._outstanding or not self._is_read or not await self._is_closed():
            try:
                async with asyncio.timeout_at(self._gives_up_at) as clock:
                    self._waiting = clock
                    ended = [await self._next_ended(), *_available(self._ended)]
            except TimeoutError:
                if not clock.expired():
                    raise
                return False
            finally:
                self._waiting = None
            ours = {
                completion.key: (completion, resumed)
                for completions, resumed in ended
                for completion in completions
                if completion.key in self._outstanding
            }
            facts = await self._facts_of([completion for completion, _ in ours.values()])
            for key, (completion, resumed) in ours.items():
                result = await self._result_of(completion, facts.get(key))
                if result is None:
                    self._submit_again(self._outstanding[key], is_known=resumed)
                    continue
                del self._outstanding[key]
                await self._finish(result, resumed=resumed)
        return True

    async def _is_closed(self) -> bool:
        """Whether the run takes no more inputs."""
        return self._close is None or self._failure is not None or await self._close()

    @property
    def _gives_up_at(self) -> float | None:
        return None if self._deadline.at is None else self._deadline.at + _GRACE

    def _on_deadline_moved(self, _: float | None) -> None:
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(self._gives_up_at)

    async def _fail_remaining(self) -> None:
        """Fails outstanding jobs and unread inputs. Agents that have started keep their facts."""
        error = AgentError(ErrorKind.BUDGET, str(self._deadline.error))
        remaining = [AgentResult(job.index, job.key, job.input, error=error) for job in self._outstanding.values()]
        for job in list(self._outstanding.values()):
            own = self._local_results.pop(job.key, None) or AgentResult(job.index, job.key, job.input, error=error)
            await self._finish(replace(own, index=job.index, input=job.input), resumed=False)
        self._outstanding.clear()
        while self._inputs.is_bounded and (left := await self._inputs.take()) is not None:
            failed = AgentResult(left.index, left.key, left.input, error=left.problem or error)
            remaining.append(failed)
            await self._finish(failed, resumed=False)
        await self._session.reject(remaining)

    async def _next_ended(self) -> tuple[Sequence[Completion], bool]:
        while True:
            try:
                async with asyncio.timeout(self._session.member.ttl):
                    return await self._ended.get()
            except TimeoutError:
                await self._submit_missing()

    async def _submit_missing(self) -> None:
        """Submits missing jobs again: a killed server may have lost the jobs or completions of its last second."""
        if await self._session.coordinator.work.pending_count() < len(self._outstanding) - self._to_submit.qsize():
            for job in self._outstanding.values():
                self._to_submit.put_nowait(job)

    def _submit_again(self, job: Job, *, is_known: bool) -> None:
        """Submits a job whose agent has ended, because the coordinator has lost some of its facts. `is_known`: whether
        it still reports the completion."""
        if is_known:
            raise StoreError(
                f"The store has lost the facts of agent {row_key(job.key)} (input {job.index}). Use another run_id to "
                "run all inputs again."
            )
        self._to_submit.put_nowait(job)

    async def _facts_of(self, completions: Sequence[Completion]) -> dict[str, tuple[Fact, ...]]:
        """Facts of the agents whose results are not known in this process."""
        here = self._session.member.name
        keys = [each.key for each in completions if each.worker != here or each.key not in self._local_results]
        if not keys:
            return {}
        return dict(zip(keys, await self._session.coordinator.facts.read_many(keys), strict=True))

    async def _result_of(self, completion: Completion, facts: Sequence[Fact] | None) -> AgentResult | None:
        own, job = self._local_results.pop(completion.key, None), self._outstanding[completion.key]
        if facts is not None:
            return await self._rebuild(job, facts, completion)
        assert own is not None
        return replace(
            own, index=job.index, input=job.input
        )  # another submitter may have submitted it with its own index

    async def _finish(self, result: AgentResult, *, resumed: bool) -> None:
        if self._events is not None:
            self._events.emit(AgentFinished(result, resumed))
        await self._deliver(result)
        self._room.release()

    def _read(self, updates: Updates) -> None:
        if updates.completions:
            self._ended.put_nowait((updates.completions, False))


def _available(queue: "asyncio.Queue[T]") -> Iterator[T]:
    """Items that are available without waiting."""
    while not queue.empty():
        yield queue.get_nowait()


async def work_and_collect(engine: Engine, source: LeasedSource, submitter: Submitter) -> None:
    """Returns when every input of the submitter has its result, and agents that were started here for others have
    ended. Raises the exceptions of both."""
    with aio.ungrouped():
        async with asyncio.TaskGroup() as group:
            group.create_task(engine.run())
            await submitter.collect()
            source.stop()


def complete_via(session: ClusterSession) -> Callable[[AgentResult], Awaitable[None]]:
    """A function that reports results to the coordinator, from which their submitters collect them."""

    async def end(result: AgentResult) -> None:
        with suppress(LeaseLost):  # another worker completes it
            await session.end(result)

    return end
