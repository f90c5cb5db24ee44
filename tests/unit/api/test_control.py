"""A live run is changed by its user: at once, for good where that makes sense, and by nobody else."""

import asyncio
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from batch_agent import AgentResult, BatchAgent, ErrorKind, Flow, SpecError, StoreError
from batch_agent.core.events import Event, Steered
from batch_agent.core.messages import User
from batch_agent.core.options import SpendingLimits
from batch_agent.core.options.control_request import KeptControls
from batch_agent.core.protocols.store import Control
from batch_agent.core.requests import Reply, Request, Usage
from batch_agent.observe.event_codec import read_line
from batch_agent.observe.event_log import FILE
from batch_agent.run.control_socket import SOCKET
from batch_agent.store.reader import CheckpointReader
from batch_agent.testing import ScriptedBackend, say

LIMIT = 20.0
"""Seconds after which a test gives up; none of them waits for a time."""


class Steps:
    """Answers of a model that wait until the test lets them go."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._free = 0
        self._changed = asyncio.Event()

    async def __call__(self, request: Request) -> Reply:
        first = request.messages[0]
        assert isinstance(first, User)
        self.asked.append(first.text)
        self._notify()
        await self.until(lambda: self._free > 0)
        self._free -= 1
        self._notify()
        return say(f"about {first.text}", usage=Usage(100, 0, 100))

    def let(self, answers: int) -> None:
        self._free += answers
        self._notify()

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(LIMIT):
            while not true():
                changed = self._changed
                await changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class LiveRun:
    """A run in a task, and what it says."""

    def __init__(self, folder: Path, inputs: Any, **options: Any) -> None:
        self.folder = folder
        self.model = Steps()
        self.events: list[Event] = []
        self.backend = ScriptedBackend(self.model)
        options = {"task": "{it}", "max_inflight": 2, "max_tokens": 100, **options}
        self._run = BatchAgent.run(
            inputs=inputs, backend=self.backend, checkpoint_dir=folder, events=self, progress=False, **options
        )
        self.task: asyncio.Task[Any] | None = None

    def emit(self, event: Event) -> None:
        self.events.append(event)

    async def begin(self, asked: int = 2) -> None:
        self.task = asyncio.create_task(self._run)
        await self.model.until(lambda: len(self.model.asked) >= asked)

    async def control(self, **changes: Any) -> list[str]:
        return [str(change) for change in await BatchAgent.control(self.folder, **changes)]

    async def end(self) -> list[AgentResult]:
        assert self.task is not None
        self.model.let(1_000)
        async with asyncio.timeout(LIMIT):
            return list(await self.task)

    @property
    def steered(self) -> list[str]:
        return [str(event) for event in self.events if isinstance(event, Steered)]


@asynccontextmanager
async def live(folder: Path, inputs: Any, asked: int = 2, **options: Any) -> AsyncIterator[LiveRun]:
    run = LiveRun(folder, inputs, **options)
    try:
        await run.begin(asked)
        yield run
    finally:
        if run.task is not None and not run.task.done():
            run.task.cancel()
            await asyncio.wait([run.task])


def errors(results: list[AgentResult]) -> dict[int, str]:
    return {result.index: result.error.kind for result in results if result.error is not None}


TEN = [f"thing {n}" for n in range(10)]


async def test_a_higher_max_inflight_starts_more_requests_at_once(tmp_path: Path) -> None:
    async with live(tmp_path, TEN) as run:
        assert await run.control(max_inflight=5) == ["max_inflight: 2 -> 5"]
        await run.model.until(lambda: len(run.model.asked) == 5)
        assert len(await run.end()) == 10


async def test_a_lower_max_inflight_starts_no_request_before_enough_have_ended(tmp_path: Path) -> None:
    async with live(tmp_path, TEN, asked=4, max_inflight=4) as run:
        assert await run.control(max_inflight=1) == ["max_inflight: 4 -> 1"]
        run.model.let(3)
        await run.model.until(lambda: run.model._free == 0)
        await run.control(deadline=1_000)  # two round trips later, none has been sent
        await run.control(deadline=1_000)
        assert len(run.model.asked) == 4
        run.model.let(1)
        await run.model.until(lambda: len(run.model.asked) == 5)
        assert not errors(await run.end())


async def test_a_paused_run_starts_no_turn_until_it_goes_on(tmp_path: Path) -> None:
    async with live(tmp_path, TEN) as run:
        assert await run.control(pause=True) == ["pause: no -> yes"]
        run.model.let(10)
        await run.model.until(lambda: run.model._free == 8)  # what was in flight is answered
        await run.control(pause=True)
        await run.control(pause=True)
        assert len(run.model.asked) == 2
        assert await run.control(pause=False) == ["pause: yes -> no"]
        assert not errors(await run.end())


async def test_a_cancelled_agent_ends_at_once_with_an_end_of_its_own(tmp_path: Path) -> None:
    async with live(tmp_path, TEN) as run:
        [change] = await run.control(cancel=1)
        assert change.endswith(": running -> cancelled")
        await run.model.until(lambda: len(run.model.asked) == 3)  # its slot is free again
        results = await run.end()
        assert errors(results) == {1: ErrorKind.CANCELLED}
        assert results[1].status == "failed"
        assert len(run.backend.requests) == 10
    with CheckpointReader(tmp_path) as reader:
        assert type(reader.find_input("1").facts[-1]).__name__ == "Failed"


async def test_an_agent_that_has_not_begun_is_cancelled_by_index_or_key(tmp_path: Path) -> None:
    rows = [{"id": f"r{n}", "it": f"thing {n}"} for n in range(10)]
    async with live(tmp_path, rows, key="id") as run:
        assert await run.control(cancel=["r7", 8]) == [
            "agent r7: not started -> cancelled",
            "agent r8: not started -> cancelled",
        ]
        assert errors(await run.end()) == {7: ErrorKind.CANCELLED, 8: ErrorKind.CANCELLED}
        assert not {"thing 7", "thing 8"} & set(run.model.asked)


async def test_an_agent_is_cancelled_by_its_key_or_the_beginning_of_it_and_a_copy_by_its_index(tmp_path: Path) -> None:
    inputs = ["same", "b", "same", "c", "same"]
    async with live(tmp_path, inputs, asked=1, max_inflight=1) as run:
        [change] = await run.control(cancel=4)
        key = change.split()[1].rstrip(":")
        with CheckpointReader(tmp_path) as reader:
            assert reader.find_input("4").key == key
        [change] = await run.control(cancel=(await whole_key(run, "c"))[:10])
        assert change.endswith("not started -> cancelled")
        assert errors(await run.end()) == {3: ErrorKind.CANCELLED, 4: ErrorKind.CANCELLED}
        assert sorted(run.model.asked) == ["b", "same", "same"]


async def whole_key(run: LiveRun, value: str) -> str:
    with CheckpointReader(run.folder) as reader:
        return next(stored.key for stored in reader.inputs() if stored.value == value)


async def test_all_samples_of_an_input_are_cancelled_with_it(tmp_path: Path) -> None:
    async with live(tmp_path, ["a", "b", "c"], samples=2, max_inflight=3, asked=3) as run:
        await run.control(cancel=["1", "2"])
        results = await run.end()
        cancelled = [(result.index, result.sample) for result in results if not result.ok]
        assert cancelled == [(1, 0), (1, 1), (2, 0), (2, 1)]


async def test_an_agent_that_is_cancelled_twice_has_one_result(tmp_path: Path) -> None:
    async with live(tmp_path, TEN) as run:
        first, second = await asyncio.gather(run.control(cancel=0), run.control(cancel=0), return_exceptions=True)
        assert isinstance(first, list) or isinstance(second, list)
        assert errors(await run.end()) == {0: ErrorKind.CANCELLED}


async def test_a_cancelled_agent_stays_cancelled_in_the_next_run(tmp_path: Path) -> None:
    async with live(tmp_path, TEN) as run:
        await run.control(cancel=[0, 9])
        await run.model.until(lambda: len(run.model.asked) == 3)
    async with live(tmp_path, TEN) as again:  # the first one was stopped before it came to the last input
        assert errors(await again.end()) == {0: ErrorKind.CANCELLED, 9: ErrorKind.CANCELLED}
        assert not {"thing 0", "thing 9"} & set(again.model.asked)
    complete = LiveRun(tmp_path, TEN)
    complete.task = asyncio.create_task(complete._run)
    assert errors(await complete.end()) == {0: ErrorKind.CANCELLED, 9: ErrorKind.CANCELLED}
    assert not complete.backend.requests


async def test_an_agent_that_has_answered_or_does_not_exist_cannot_be_cancelled(tmp_path: Path) -> None:
    async with live(tmp_path, TEN) as run:
        run.model.let(2)
        await run.model.until(lambda: len(run.model.asked) == 4)
        with pytest.raises(SpecError, match="has ended"):
            await run.control(cancel=0)
        with pytest.raises(SpecError, match="There is no agent '77'"):
            await run.control(cancel=77)
        assert not errors(await run.end())
        assert run.steered == []


async def test_added_inputs_run_after_the_others_and_are_counted(tmp_path: Path) -> None:
    async with live(tmp_path, TEN) as run:
        assert await run.control(add=["more 1", "more 2"]) == ["inputs: 10 -> 12"]
        results = await run.end()
    assert [result.index for result in results] == list(range(12))
    assert run.model.asked[-2:] == ["more 1", "more 2"]
    with CheckpointReader(tmp_path) as reader:
        assert [stored.value for stored in reader.inputs()] == [*TEN, "more 1", "more 2"]


async def test_inputs_are_added_while_the_last_agent_runs(tmp_path: Path) -> None:
    async with live(tmp_path, ["a", "b"]) as run:
        await run.control(add=["c"])
        await run.control(add=["d", "e"])
        assert [result.input for result in await run.end()] == ["a", "b", "c", "d", "e"]


async def test_inputs_are_added_to_those_that_are_read_lazily(tmp_path: Path) -> None:
    async with live(tmp_path, iter(["a", "b", "c"])) as run:
        assert await run.control(add=["d"]) == ["inputs: unknown -> 1 more"]
        assert [(each.index, each.input) for each in await run.end()] == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]


async def test_added_inputs_are_run_by_the_next_run_if_this_one_stops(tmp_path: Path) -> None:
    async with live(tmp_path, TEN) as run:
        await run.control(add=["more"])
    async with live(tmp_path, TEN) as again:
        results = await again.end()
        assert [result.input for result in results] == [*TEN, "more"]
    complete = LiveRun(tmp_path, TEN)
    complete.task = asyncio.create_task(complete._run)
    assert [result.input for result in await complete.end()] == [*TEN, "more"]
    assert not complete.backend.requests


async def test_inputs_that_do_not_fit_the_task_are_refused_all_together(tmp_path: Path) -> None:
    rows = [{"id": n, "it": f"thing {n}"} for n in range(4)]
    async with live(tmp_path, rows, key="id") as run:
        with pytest.raises(SpecError, match="Input 1 to add does not fit the task"):
            await run.control(add=[{"id": 5, "it": "x"}, {"id": 6}])
        with pytest.raises(SpecError, match="must be unique"):
            await run.control(add=[{"id": 3, "it": "x"}])
        with pytest.raises(SpecError, match="JSON data"):
            await run.control(add=[object()])
        assert len(await run.end()) == 4


PRICES = {"scripted": [1.0, 1.0, 1.0]}


async def test_a_budget_below_what_is_spent_ends_the_run_as_a_budget_does(tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_usd": 1.0, "prices": PRICES, "model": "scripted"}
    async with live(tmp_path, TEN, **options) as run:
        run.model.let(2)
        await run.model.until(lambda: len(run.model.asked) == 4)
        assert await run.control(max_usd=0.0001) == ["max_usd: 1 -> 0.0001 (0.0004 spent)"]
        found = errors(await run.end())
        assert set(found.values()) == {ErrorKind.BUDGET}
        assert len(found) == 6
    async with live(tmp_path, TEN, asked=0, **options) as again:  # the same command keeps the lower budget
        assert len(errors(await again.end())) == 6
    async with live(tmp_path, TEN, asked=0, **{**options, "max_usd": 2.0}) as raised:  # another value replaces it
        assert not errors(await raised.end())


async def test_a_run_that_counts_no_dollars_says_how_to_give_it_a_budget(tmp_path: Path) -> None:
    async with live(tmp_path, TEN) as run:
        with pytest.raises(SpecError, match=r"started without max_usd.*resume it with max_usd=3"):
            await run.control(max_usd=3, max_inflight=7)
        assert len(run.model.asked) == 2  # nothing was changed


async def test_a_deadline_that_has_passed_ends_a_run_that_had_none(tmp_path: Path) -> None:
    async with live(tmp_path, TEN) as run:
        [change] = await run.control(deadline=0.001)
        assert change == "deadline: none -> 0.001 s (0 s left)"
        assert run.task is not None
        async with asyncio.timeout(LIMIT):
            found = errors(list(await run.task))
        assert set(found.values()) == {ErrorKind.BUDGET}
        assert len(found) == 10


async def test_a_deadline_ends_a_paused_run(tmp_path: Path) -> None:
    async with live(tmp_path, TEN) as run:
        await run.control(pause=True)
        await run.control(deadline=0.001)
        assert run.task is not None
        async with asyncio.timeout(LIMIT):
            assert len(errors(list(await run.task))) == 10


async def test_a_later_deadline_replaces_an_earlier_one(tmp_path: Path) -> None:
    async with live(tmp_path, TEN, deadline=600) as run:
        assert (await run.control(deadline=1_000))[0].startswith("deadline: 600 s -> 1000 s (")
        await run.control(deadline=0.001)
        assert run.task is not None
        async with asyncio.timeout(LIMIT):
            assert len(errors(list(await run.task))) == 10


async def test_requests_at_the_same_time_are_all_applied(tmp_path: Path) -> None:
    async with live(tmp_path, TEN) as run:
        several = [run.control(add=[f"more {n}"]) for n in range(8)] + [run.control(cancel=0), run.control(cancel=0)]
        answers = await asyncio.gather(*several, return_exceptions=True)
        assert [each for each in answers[:8] if isinstance(each, Exception)] == []
        assert sum(isinstance(each, list) for each in answers[8:]) >= 1
        results = await run.end()
        assert len(results) == 18
        assert errors(results) == {0: ErrorKind.CANCELLED}


async def test_changes_are_in_the_event_log_and_in_the_order_in_which_they_were_made(tmp_path: Path) -> None:
    async with live(tmp_path, TEN) as run:
        await run.control(max_inflight=3, pause=True)
        await run.control(pause=False, add=["more"])
        await run.end()
        expected = ["max_inflight: 2 -> 3", "pause: no -> yes", "pause: yes -> no", "inputs: 10 -> 11"]
        assert run.steered == expected
    lines = [line for line in (tmp_path / FILE).read_bytes().splitlines() if b'"Steered"' in line]
    assert [str(read_line(line)[1]) for line in lines] == expected


async def test_only_the_user_of_the_run_can_open_its_socket_which_is_removed_at_the_end(tmp_path: Path) -> None:
    async with live(tmp_path, TEN) as run:
        mode = (tmp_path / SOCKET).stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
        await run.end()
    assert not (tmp_path / SOCKET).exists()


async def test_a_checkpoint_with_a_long_path_has_a_socket_too(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30) / "checkpoint"
    async with live(folder, TEN) as run:
        assert await run.control(max_inflight=3) == ["max_inflight: 2 -> 3"]


async def test_a_run_that_is_not_running_is_named_with_how_to_resume_it(tmp_path: Path) -> None:
    async with live(tmp_path, TEN) as run:
        await run.end()
    with pytest.raises(StoreError, match=r"is not running\. To resume it: batch-agent resume"):
        await BatchAgent.control(tmp_path, pause=True)
    with pytest.raises(StoreError, match="There is no checkpoint"):
        await BatchAgent.control(tmp_path / "nothing", pause=True)


async def test_a_change_of_nothing_or_by_a_wrong_value_is_refused(tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [{}, {"max_inflight": 0}, {"max_usd": 0}, {"deadline": -1}, {"add": []}]
    for changes in wrong:
        with pytest.raises(SpecError):
            await BatchAgent.control(tmp_path, **changes)


async def test_the_limits_of_a_flow_are_changed_and_the_rest_is_refused(tmp_path: Path) -> None:
    model = Steps()
    options: dict[str, Any] = {"backend": ScriptedBackend(model), "checkpoint_dir": tmp_path, "max_inflight": 2}
    flow = Flow(TEN, **options).map("first", "{text}").map("second", "{first}")
    task = asyncio.create_task(flow.run())
    try:
        await model.until(lambda: len(model.asked) == 2)
        assert [str(each) for each in await BatchAgent.control(tmp_path, max_inflight=4)] == ["max_inflight: 2 -> 4"]
        await model.until(lambda: len(model.asked) == 4)
        for changes in ({"add": ["x"]}, {"cancel": 0}):
            with pytest.raises(SpecError, match="run with stages"):
                await BatchAgent.control(tmp_path, **changes)
        with pytest.raises(StoreError, match="one stage of the run"):
            await BatchAgent.control(tmp_path / "first", pause=True)
        model.let(1_000)
        async with asyncio.timeout(LIMIT):
            assert len((await task).items) == 10
    finally:
        task.cancel()
        await asyncio.wait([task])


def test_a_resumed_run_keeps_changes_unless_its_options_differ_from_those_that_were_changed() -> None:
    controls = [
        Control("max_usd", 2.0, 5.0),
        Control("add", ["a"]),
        Control("cancel", "k"),
        Control("add", ["b", "c"]),
        Control("max_usd", 3.0, 5.0),
        Control("deadline", 60.0, None),
    ]
    kept = KeptControls.of(controls, SpendingLimits(max_usd=5.0))
    assert kept == KeptControls(3.0, 60.0, ("k",), ("a", "b", "c"))
    other = KeptControls.of(controls, SpendingLimits(max_usd=9.0, deadline=10))
    assert (other.max_usd, other.deadline) == (9.0, 10)
