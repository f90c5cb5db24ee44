"""The engine with an executor of its own: what it does when that one misbehaves."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from batch_agent.core.agent_config import Job
from batch_agent.core.coordinator import Completion
from batch_agent.core.errors import BatchAgentError, ErrorKind, StoreError
from batch_agent.core.facts import Fact, Replied
from batch_agent.core.protocols.agent_executor import Slot
from batch_agent.core.protocols.store import Store
from batch_agent.core.requests import Reply, Usage
from batch_agent.core.results import AgentError, AgentResult
from batch_agent.engine.admission import AdmissionController
from batch_agent.engine.engine import Engine, EngineConfig, Fit
from batch_agent.engine.job_source import InputSource, JobSource
from batch_agent.engine.slots import Slots
from batch_agent.schedule.concurrency_limit import InflightLimit
from batch_agent.schedule.slot_queue import Priority
from batch_agent.store.memory_store import MemoryStore, NoStore


class Runs:
    """An executor that does what it is told for each index."""

    def __init__(self, behave: Callable[[int], BaseException | None]) -> None:
        self._behave = behave

    def from_checkpoint(self, job: Job, facts: Sequence[Fact]) -> AgentResult | None:
        if error := self._behave(job.index):
            raise error
        return None

    async def from_remote(self, job: Job, facts: Sequence[Fact], completion: Completion) -> AgentResult:
        return AgentResult(job.index, job.key, job.input, error=completion.error)

    async def run(self, job: Job, facts: Sequence[Fact], slot: Slot) -> AgentResult:
        await asyncio.sleep(0)
        error = self._behave(job.index)
        if error is not None:
            raise error
        return AgentResult(job.index, job.key, job.input)


class TwoTurns(Runs):
    """Agents of two turns; some of them have their results in the checkpoint, or do not fit the context window."""

    def __init__(self, known: int, refused: int, agents: int) -> None:
        super().__init__(lambda _: None)
        self.admission = AdmissionController(Slots(InflightLimit(2, fixed=True)), agents=agents)
        self._known = range(known)
        self._refused = range(known, known + refused)
        self.turns: list[str] = []

    def from_checkpoint(self, job: Job, facts: Sequence[Fact]) -> AgentResult | None:
        return AgentResult(job.index, job.key, job.input) if job.index in self._known else None

    async def fit(self, job: Job) -> Job:
        if job.index not in self._refused:
            return job
        return replace(job, problem=AgentError(ErrorKind.BAD_INPUT, "too long"))

    async def run(self, job: Job, facts: Sequence[Fact], slot: Slot) -> AgentResult:
        self.turns.append(f"{job.index} starts")
        await asyncio.sleep(0)
        slot.release()
        slot = await self.admission.readmit(job, 1)
        self.turns.append(f"{job.index} goes on")
        await asyncio.sleep(0)
        slot.release()
        return AgentResult(job.index, job.key, job.input)


def engine(
    executor: Runs,
    agents: int,
    store: Store | None = None,
    gate: AdmissionController | None = None,
    fit: Fit | None = None,
) -> tuple[Engine, Slots, list[AgentResult]]:
    delivered: list[AgentResult] = []

    async def deliver(result: AgentResult) -> None:
        delivered.append(result)

    gate = gate or AdmissionController(Slots(InflightLimit(2, fixed=True)))
    source = InputSource(JobSource(range(agents)), lambda index, value: Job(index, str(index), value, str(value)))
    config = EngineConfig(source, executor, store or NoStore(), gate, deliver, max_dispatched=4, fit=fit)
    return Engine(config), gate.slots, delivered


class Panic(BaseException):
    """As libraries in Rust raise it."""


@pytest.mark.parametrize(
    "error",
    [ZeroDivisionError("boom"), asyncio.CancelledError("boom"), KeyError("boom"), Panic("boom"), GeneratorExit("boom")],
)
async def test_an_exception_inside_an_executor_becomes_an_internal_result_and_frees_its_slot(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    running, slots, delivered = engine(Runs(lambda index: error if index % 2 else None), 9)
    await running.run()
    assert sorted(result.index for result in delivered) == list(range(9))
    failed = [result for result in delivered if result.error]
    assert sorted(result.index for result in failed) == [1, 3, 5, 7]
    assert all(result.error and result.error.kind is ErrorKind.INTERNAL for result in failed)
    assert all(result.error and "boom" in result.error.message for result in failed)
    assert [await slots.acquire(Priority(is_fresh=True)) for _ in range(2)]
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.exc_info  # one traceback is enough to find the bug, and a thousand are too many


class CancelsItself(Runs):
    """Every other agent ends as if a tool had cancelled the task that runs it."""

    async def run(self, job: Job, facts: Sequence[Fact], slot: Slot) -> AgentResult:
        task = asyncio.current_task()
        if task is not None and job.index % 2:
            task.cancel()
            task.cancel()
        return await super().run(job, facts, slot)


async def test_an_agent_that_cancels_its_own_task_has_a_result_and_frees_its_room() -> None:
    running, slots, delivered = engine(CancelsItself(lambda _: None), 20)  # more than may be dispatched at once
    async with asyncio.timeout(10):
        await running.run()
    assert sorted(result.index for result in delivered) == list(range(20))
    failed = [result.error for result in delivered if result.error]
    assert [error.kind for error in failed] == [ErrorKind.INTERNAL] * 10
    assert "own task was cancelled" in failed[0].message
    assert [await slots.acquire(Priority(is_fresh=True)) for _ in range(2)]


async def test_an_agent_whose_tool_call_was_cancelled_from_inside_says_so() -> None:
    running, _, delivered = engine(Runs(lambda _: asyncio.CancelledError()), 1)
    await running.run()
    assert delivered[0].error is not None
    assert "own task was cancelled" in delivered[0].error.message


async def test_a_cancelled_run_does_not_take_its_agents_for_cancelled_by_themselves() -> None:
    running, _, delivered = engine(CancelsItself(lambda _: None), 20)
    run = asyncio.create_task(running.run())
    asyncio.get_running_loop().call_soon(run.cancel)
    with pytest.raises(asyncio.CancelledError):
        await run
    assert not [result for result in delivered if result.error]


async def test_an_unreadable_fact_history_fails_only_its_agent() -> None:
    store = MemoryStore()
    for index in range(3):
        store.record(str(index), Replied(Reply("", "stop", Usage())))
    running, _, delivered = engine(Runs(lambda index: ValueError("odd story") if index == 1 else None), 3, store)
    await running.run()
    assert [result.index for result in delivered if result.error] == [1]
    assert len(delivered) == 3


async def test_agents_that_are_not_started_again_do_not_count_as_work_that_is_left() -> None:
    """The last agents of a resumed run start before others go on, as those of any other run."""
    orders = []
    for known, refused in [(0, 0), (6, 0), (0, 6), (4, 2)]:
        executor = TwoTurns(known, refused, agents=known + refused + 8)
        store = MemoryStore()
        for index in range(known):
            store.record(str(index), Replied(Reply("", "stop", Usage())))
        running, _, delivered = engine(executor, known + refused + 8, store, executor.admission, executor.fit)
        await running.run()
        assert len(delivered) == known + refused + 8
        first = known + refused
        orders.append([(int(turn.split()[0]) - first, turn.split(" ", 1)[1]) for turn in executor.turns])
    assert orders[1:] == orders[:1] * 3


async def test_an_error_for_the_caller_ends_the_run_unchanged() -> None:
    running, _, delivered = engine(Runs(lambda index: StoreError("disk full") if index == 3 else None), 100)
    with pytest.raises(BatchAgentError, match="disk full") as raised:
        await running.run()
    assert type(raised.value) is StoreError
    assert len(delivered) < 20


def test_a_keyboard_interrupt_inside_an_agent_ends_the_run_unchanged() -> None:
    async def main() -> None:
        running, _, _ = engine(Runs(lambda index: KeyboardInterrupt() if index == 3 else None), 100)
        await running.run()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())


async def test_a_job_that_cannot_be_made_is_a_bad_input_with_a_result_of_its_own() -> None:
    def make(index: int, value: object) -> Job:
        if index == 1:
            raise TypeError("str is not valid UTF-8")
        return Job(index, str(index), value, "task")

    source = InputSource(JobSource("abc"), make)
    jobs = [await source.take() for _ in range(4)]
    assert jobs[3] is None
    assert [job.index for job in jobs[:3] if job] == [0, 1, 2]
    assert jobs[1] is not None
    assert jobs[1].problem is not None
    assert jobs[1].problem.kind is ErrorKind.BAD_INPUT
    assert jobs[1].input == "b"


async def test_peeking_at_the_first_input_does_not_consume_it() -> None:
    inputs = JobSource(iter("ab"))
    peeked = await inputs.peek()
    assert peeked == ["a"]
    peeked.clear()
    assert [await inputs.next(), await inputs.next()] == ["a", "b"]
    with pytest.raises(StopAsyncIteration):
        await inputs.next()
    assert await JobSource([]).peek() == []


async def test_the_number_of_inputs_is_known_only_for_sized_inputs() -> None:
    assert JobSource([1, 2]).total == 2
    assert JobSource(iter([1, 2])).total is None


async def test_a_dict_that_a_generator_fills_again_for_each_input_is_read_as_it_was() -> None:
    row: dict[str, int] = {}

    def rows() -> Iterator[dict[str, int]]:
        for number in range(3):
            row["n"] = number
            yield row

    inputs = JobSource(rows())
    assert [await inputs.next() for _ in range(3)] == [{"n": 0}, {"n": 1}, {"n": 2}]
    given = [{"n": 0}]
    assert await JobSource(given).next() is given[0]
