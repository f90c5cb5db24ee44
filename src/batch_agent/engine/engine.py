"""Engine: takes jobs while there is capacity, runs each agent as a task, and delivers results as they finish."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from .. import aio
from ..aio import RunDeadline, is_failure
from ..core.agent_config import Job, without_sample
from ..core.errors import BackendError, BatchAgentError, ErrorKind, LeaseLost
from ..core.events import AgentFinished, AgentReassigned, AgentStarted
from ..core.facts import Fact, Failed, Started
from ..core.fast_dataclass import dataclass
from ..core.protocols.agent_executor import Executor, Slot, WorkSource
from ..core.protocols.event_sink import EventSink
from ..core.protocols.store import Store
from ..core.results import AgentError, AgentResult
from ..core.run_failure import RunStopped
from .admission import AdmissionController

_log = logging.getLogger("batch_agent")
_LATE_DELIVERY_SECONDS = 2.0
"""Time limit for results that were being written when a run was cancelled. A healthy disk takes a tenth of it."""

Deliver = Callable[[AgentResult], Awaitable[None]]
Leave = Callable[[str], Awaitable[None]]
Fit = Callable[[Job], Awaitable[Job]]
Complete = Callable[[Job, Sequence[Fact], AgentResult], Awaitable[AgentResult]]
CANCELLED = AgentError(ErrorKind.CANCELLED, "The agent was cancelled by the user.")
_SELF_CANCELLED = (
    "the agent's own task was cancelled although the run goes on. A tool does that with "
    "asyncio.current_task().cancel(), or by leaving a cancel scope open"
)


class RunEnding(BatchAgentError):
    """The run takes no more inputs, because it has no agent left."""

    def __init__(self) -> None:
        super().__init__("The run is ending.")


def _cancelled_result(job: Job) -> AgentResult:
    return AgentResult(job.index, job.key, job.input, error=CANCELLED)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Dependencies and settings of an engine."""

    source: WorkSource
    executor: Executor
    store: Store
    admission: AdmissionController
    deliver: Deliver
    max_dispatched: int
    leave: Leave | None = None
    """Called for each agent after its result was delivered."""
    fit: Fit | None = None
    """Makes a new job fit the context window, or sets its problem."""
    complete: Complete | None = None
    """Completes a result from the checkpoint with what its own facts do not contain."""
    events: EventSink | None = None
    settles: bool = True
    """Whether the engine makes facts durable before it calls `deliver`; False if `deliver` does so. In that case agents
    are started while up to `max_dispatched` finished ones are still being written."""
    deadline: RunDeadline | None = None
    """Time after which no agent is started: the remaining inputs fail, and an unbounded iterator is no longer read."""


class Engine:
    """Runs the agents of a run, and delivers exactly one result for every input."""

    def __init__(self, config: EngineConfig) -> None:
        self._source = config.source
        self._executor = config.executor
        self._store = config.store
        self._admission = config.admission
        self._deliver = config.deliver
        self._room = config.max_dispatched
        """Number of agents that may be dispatched now."""
        self._room_to_end = 0 if config.settles else config.max_dispatched
        """Number of finished agents that may be written while new ones take their room."""
        self._room_waiter: asyncio.Future[None] | None = None
        """Future on which the dispatcher waits for room."""
        self._leave = config.leave
        self._fit = config.fit
        self._complete = config.complete
        self._events = config.events
        self._settles_facts = config.settles
        deadline = config.deadline
        self._deadline = deadline if deadline is not None and deadline.at is not None else None
        self._has_reported = False
        self._group: asyncio.TaskGroup | None = None
        """Tasks of the running agents; None before the run and at its end."""
        self._runner: asyncio.Task[None] | None = None
        """The task that executes `run`."""
        self._is_ending = False
        """Whether the agents are being cancelled because one of them, or the dispatcher, raised."""
        self._broken: Exception | None = None
        """The error that ended the inputs."""
        self._running: dict[str, tuple[Job, asyncio.Task[None]]] = {}
        """Agents that have been started and have no result, by key."""
        self._cancelled: set[str] = set()
        """Keys of agents that the user cancelled."""
        self._dispatcher: asyncio.Task[None] | None = None
        """The task that starts agents; None once it has read all inputs."""
        self._waits_without_deadline = False
        """Whether the dispatcher is in a wait that began without a deadline, and which a deadline set since does not
        end."""
        self._is_late = False
        """Whether the dispatcher was cancelled because the deadline has passed."""

    async def run(self) -> None:
        """Returns when every input has its result. Raises StoreError, and RunStopped if the backend failed for good or
        the iterator of the inputs raised; in the latter case, started agents finish first."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group, self._runner = group, asyncio.current_task()
                await self._dispatch(group)
        except BaseExceptionGroup as failures:
            error = aio.unwrap_group(failures)
            if isinstance(error, RunStopped) and self._source.total is not None:
                await self._deliver_recorded()
            raise error from None
        finally:
            self._group = None
        if self._broken is not None:
            raise self._broken

    async def extend(self, add: Callable[[], Awaitable[None]]) -> None:
        """Adds inputs by calling `add`, and then reads them. The run does not end meanwhile. Raises RunEnding if no
        agent is left, and whatever `add` raises."""
        added = asyncio.get_running_loop().create_future()
        work = self._extend(add, added)
        try:
            if self._group is None:
                raise RunEnding
            self._group.create_task(work)
        except (RuntimeError, RunEnding):  # the group has ended, or is being cancelled
            work.close()
            raise RunEnding from None
        await added

    async def _extend(self, add: Callable[[], Awaitable[None]], added: "asyncio.Future[None]") -> None:
        try:
            await add()
        except BatchAgentError as error:
            if not added.done():
                added.set_exception(error)
            return
        except BaseException:
            added.cancel()
            raise
        if not added.done():
            added.set_result(None)
        if self._dispatcher is None and self._group is not None:
            await self._dispatch(self._group)

    def running(self, wanted: Callable[[Job], bool]) -> list[Job]:
        """Jobs of started agents without a result that satisfy the predicate."""
        return [job for job, _ in self._running.values() if wanted(job)]

    def cancel(self, key: str) -> None:
        """Cancels an agent. A running agent ends now; one that was not started never is. Its result has an error of
        kind `cancelled`. Does nothing if the agent has a result."""
        self._cancelled.add(key)
        # Later: a task that is cancelled before its first step would have no result.
        asyncio.get_running_loop().call_soon(self._cancel_running)

    def _cancel_running(self) -> None:
        for key, (_, task) in self._running.items():
            if not task.cancelling() and self._is_cancelled(key):
                task.cancel()

    def on_deadline_moved(self, deadline: RunDeadline) -> None:
        """The deadline was set, moved or removed during the run."""
        self._deadline = None if deadline.at is None else deadline
        if deadline.at is not None:
            asyncio.get_running_loop().call_at(deadline.at, self._end_wait)

    def _end_wait(self) -> None:
        """Ends a wait of the dispatcher that began without a deadline."""
        is_due = self._deadline is not None and self._deadline.has_passed
        if is_due and self._waits_without_deadline and self._dispatcher is not None and not self._is_late:
            self._is_late = True
            self._dispatcher.cancel()

    def _check_is_late(self) -> None:
        """Raises CancelledError if the dispatcher was cancelled for another reason than the deadline."""
        dispatcher = self._dispatcher
        if not self._is_late or dispatcher is None or dispatcher.uncancel() > 0:
            raise asyncio.CancelledError

    async def _deliver_recorded(self) -> None:
        """Delivers the results in the checkpoint of inputs that a stopped run did not reach."""
        with suppress(RunStopped):  # the inputs fail too: why the run stopped is already known
            while (job := await self._source.take()) is not None:
                facts = await self._store.facts(job.key)
                known = await self._recall(job, facts) if facts else None
                if known is not None:
                    await self._deliver_result(known, resumed=True)

    async def _dispatch(self, group: asyncio.TaskGroup) -> None:
        """Starts agents until the source has no more jobs."""
        self._dispatcher = asyncio.current_task()
        self._admission.on_dispatch(is_dispatching=True)
        try:
            while True:
                try:
                    self._waits_without_deadline = self._deadline is None and not self._source.is_bounded
                    job = await (self._source.take() if self._deadline is None else self._take_in_time(self._deadline))
                except asyncio.CancelledError:
                    self._check_is_late()
                    return
                except Exception as error:  # noqa: BLE001 - the user's iterator: started agents finish first
                    self._broken = error
                    return
                self._waits_without_deadline = False
                if job is None:
                    return
                facts = await self._store.facts(job.key)
                known = await self._recall(job, facts) if facts or job.problem else None
                if known is not None:
                    if known.error is not None and not facts:
                        self._store.reject(job.index, job.input, known.error)
                    elif job.problem is not None and known.error is not None:  # leased too often
                        self._record_failure(job, facts, known.error, known.timing.total)
                    await self._deliver_result(known, resumed=bool(facts))
                    self._source.release(job)
                    self._admission.expect(-1)
                    continue
                slot = None
                if self._fit is not None:
                    job = await self._fit(job)
                if job.problem is None:
                    try:
                        self._waits_without_deadline = self._deadline is None
                        slot = await (
                            self._slot(job, facts) if self._deadline is None else self._slot_in_time(job, facts)
                        )
                    except asyncio.CancelledError:
                        self._check_is_late()
                    self._waits_without_deadline = False
                if slot is None:
                    await self._reject(job)
                    self._admission.expect(-1)
                    continue
                if self._cancelled and self._is_cancelled(job.key):
                    await self._leave_out(job, facts, slot)
                    continue
                self._running[job.key] = job, group.create_task(self._agent(job, facts, slot))
        except BaseException:
            self._is_ending = True
            raise
        finally:
            self._dispatcher = None
            self._admission.on_dispatch(is_dispatching=False)

    async def _slot(self, job: Job, facts: Sequence[Fact]) -> Slot:
        await self._wait_for_room()
        return await self._admission.admit(job, facts)

    async def _slot_in_time(self, job: Job, facts: Sequence[Fact]) -> Slot | None:
        """Returns None if the deadline passes first."""
        assert self._deadline is not None
        if self._deadline.has_passed:
            return None
        has_room = False
        try:
            async with self._deadline.limit():
                has_room = await self._wait_for_room()
                return await self._admission.admit(job, facts)
        except BackendError:
            if has_room:
                self._free_room()
            return None

    async def _wait_for_room(self) -> bool:
        if not self._room:
            self._admission.on_dispatch(is_dispatching=False)
            self._room_waiter = asyncio.get_running_loop().create_future()
            try:
                await self._room_waiter
            finally:
                self._room_waiter = None
        self._room -= 1
        self._admission.on_dispatch(is_dispatching=True)
        return True

    def _free_room(self) -> None:
        self._room += 1
        if self._room_waiter is not None and not self._room_waiter.done():
            self._room_waiter.set_result(None)

    async def _take_in_time(self, deadline: RunDeadline) -> Job | None:
        if self._source.is_bounded:
            return await self._source.take()
        if deadline.has_passed:
            return None
        try:
            async with deadline.limit():
                return await self._source.take()
        except BackendError:
            if not deadline.has_passed:
                raise
            return None

    async def _recall(self, job: Job, facts: Sequence[Fact]) -> AgentResult | None:
        try:
            known = self._executor.from_checkpoint(job, facts)
        except Exception:  # noqa: BLE001 - facts that cannot be replayed fail their agent when it runs
            return None
        return known if known is None or self._complete is None else await self._complete(job, facts, known)

    async def _reject(self, job: Job) -> None:
        """Fails a job that was not started, because it does not fit the context window or the deadline has passed."""
        problem = job.problem
        if problem is None:
            assert self._deadline is not None
            problem = AgentError(ErrorKind.BUDGET, str(self._deadline.error))
        self._store.reject(job.index, job.input, problem)
        await self._deliver_result(AgentResult(job.index, job.key, job.input, error=problem), resumed=False)
        self._source.release(job)

    def _is_cancelled(self, key: str) -> bool:
        row, mark, _ = key.rpartition("@")  # of a run with `key=`
        return not self._cancelled.isdisjoint((key, without_sample(key), f"{row}{mark}"))

    async def _leave_out(self, job: Job, facts: Sequence[Fact], slot: Slot) -> None:
        """Ends an agent that was cancelled before this run started it."""
        slot.release()
        self._admission.release(job.key)
        self._free_room()
        if not facts:
            self._store.record(job.key, Started.of(job))
        self._store.record(job.key, Failed(CANCELLED))
        result = await self._recall(job, await self._store.facts(job.key))
        await self._deliver_result(result or _cancelled_result(job), resumed=False)
        self._source.release(job)

    async def _agent(self, job: Job, facts: Sequence[Fact], slot: Slot) -> None:
        has_room = True
        try:
            if self._events is not None:
                self._events.emit(AgentStarted(job.key, job.index))
            try:
                result = await self._executor.run(job, facts, slot)
            except BatchAgentError:
                raise
            except BaseException as error:  # a bug in one agent must not stop the others
                if is_failure(error):
                    result = self._internal_error(job, error)
                elif self._was_cancelled_by_user(job):
                    result = _cancelled_result(job)
                elif isinstance(error, asyncio.CancelledError) and self._was_cancelled_by_itself():
                    result = self._internal_error(job, RuntimeError(_SELF_CANCELLED))
                else:
                    raise
            finally:
                if job.key in self._running:  # a worker may have leased it again
                    del self._running[job.key]
                slot.release()
                self._admission.release(job.key)
            if result.error is not None:
                self._record_failure(job, facts, result.error, result.timing.total)
            if self._room_to_end:
                self._room_to_end -= 1
                has_room = False
                self._free_room()
            try:
                if self._settles_facts:
                    await self._store.settle(job.key)
            except asyncio.CancelledError:
                if result.ok:
                    await self._deliver_late(job, result)
                raise
            if result.error is CANCELLED:  # with its usage and its transcript
                result = await self._recall(job, await self._store.facts(job.key)) or result
            await self._deliver_result(result, resumed=False)
        except LeaseLost:
            if self._events is not None:
                self._events.emit(AgentReassigned(job.key))
        except BaseException:
            self._is_ending = True
            raise
        finally:
            self._source.release(job)
        if has_room:
            self._free_room()  # only now: a caller that reads slowly delays further agents
        else:
            self._room_to_end += 1
        if self._leave is not None:
            await self._leave(job.key)

    def _was_cancelled_by_user(self, job: Job) -> bool:
        """Whether the running task is cancelled for the user's request, and for no other reason."""
        task = asyncio.current_task()
        return self._is_cancelled(job.key) and task is not None and task.uncancel() == 0

    def _was_cancelled_by_itself(self) -> bool:
        """Whether the running task was cancelled by its own code, while the run goes on. If so, the cancellation is
        undone."""
        task = asyncio.current_task()
        if self._is_ending or self._runner is None or self._runner.cancelling() or task is None:
            return False
        while task.uncancel():
            pass
        return True

    def _record_failure(self, job: Job, facts: Sequence[Fact], error: AgentError, seconds: float) -> None:
        """Records the end of an agent that failed. One with chunks may have failed before its own facts began."""
        if job.parts and not facts:
            self._store.record(job.key, Started.of(job))
        self._store.record(job.key, Failed(error, seconds))

    def _internal_error(self, job: Job, error: BaseException) -> AgentResult:
        level = logging.DEBUG if self._has_reported else logging.ERROR
        _log.log(
            level, "Agent %d failed with an internal error; further ones are logged at DEBUG", job.index, exc_info=error
        )
        self._has_reported = True
        if isinstance(error, asyncio.CancelledError) and not str(error):  # of a task that a tool call has for itself
            error = RuntimeError(_SELF_CANCELLED)
        reason = AgentError(ErrorKind.INTERNAL, f"{type(error).__name__}: {error}")
        return AgentResult(job.index, job.key, job.input, error=reason)

    async def _deliver_late(self, job: Job, result: AgentResult) -> None:
        """Delivers the answer of an agent whose run was cancelled during a write of the store, unless that takes too
        long. A failed agent is left to the next run."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LATE_DELIVERY_SECONDS):
                await self._store.settle(job.key)
                await self._deliver_result(result, resumed=False)

    async def _deliver_result(self, result: AgentResult, *, resumed: bool) -> None:
        if self._events is not None:
            self._events.emit(AgentFinished(result, resumed))
        await self._deliver(result)
