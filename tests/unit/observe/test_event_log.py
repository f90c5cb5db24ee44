"""The log of a run: whatever happens to it, what can be read of it is read."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from tests.support.event_logs import BEGAN, answered, failed, real_run, started, turn, written

from batch_agent import BatchAgent, ErrorKind, StoreError, Usage
from batch_agent.core.events import (
    AgentFinished,
    AgentReassigned,
    AgentStarted,
    BudgetReported,
    CallbackFailed,
    CallsEnded,
    CallsStarted,
    EndpointChanged,
    Event,
    FlowStarted,
    ItemQueued,
    LimitChanged,
    LoadSampled,
    Notice,
    Paused,
    PrefixReported,
    RequestRetried,
    Resumed,
    RunStarted,
    SchedulingReported,
    StageEvent,
    Steered,
    ToolsUsed,
    TurnEnded,
    TurnStarted,
    WorkerEvent,
)
from batch_agent.core.results import AgentResult, CallRecord, ToolUse
from batch_agent.core.run_reports import Finding, LimitChange, PrefixReport, Scheduling
from batch_agent.observe.event_codec import event_line
from batch_agent.observe.event_log import FILE, LogReader, closed_line, opened_line
from batch_agent.observe.event_recorder import EventRecorder
from batch_agent.testing import ScriptedBackend, say

EVERY_KIND: list[Event] = [
    FlowStarted(("a", "b")),
    RunStarted("vllm", "m", 8, None, ("seen",), (1.0, 0.1, 2.0)),
    PrefixReported(PrefixReport(3, 10, 20, "here", findings=(Finding("uuid", "There is one.", "Drop it."),))),
    Notice("wait"),
    ItemQueued(),
    CallbackFailed("expand('parts')", "3.0", "KeyError: 'ä'"),
    AgentStarted("k", 3),
    TurnStarted("k", 1),
    TurnEnded("k", 1, Usage(3, 2, 1), "calls", 0.5, 1.5, None, 2),
    CallsStarted("k", 1, ("look",)),
    CallsEnded("k", 1, (CallRecord("look", "", True, 0.25, "shared"),), 0.25),
    LoadSampled("vllm", 3, 8, 1, None, None, None, 0.5, 2, 0),
    RequestRetried("k", ErrorKind.SERVER, "no", 0.5),
    LimitChanged(4, "rate limited"),
    Paused(1.0, "rate limited"),
    Resumed(),
    Steered("inputs", "2", "5", 3),
    EndpointChanged("vllm://gpu1:8000", "draining", 2, 3, 4096),
    ToolsUsed((ToolUse("look", 2, 1, 1),), Usage(5, 0, 1)),
    BudgetReported(12, 0.5),
    SchedulingReported(Scheduling(8, (LimitChange(1.0, 4, "room"),), 100)),
    failed("k", 3),
    answered("l", 4, usage=Usage(3, 2, 1)),
    AgentReassigned("k"),
    StageEvent("a", AgentStarted("k", 3)),
    WorkerEvent("w", AgentStarted("k", 3)),
]


def read(folder: Path) -> list[tuple[float, Event]]:
    return list(LogReader(folder).read())


@pytest.mark.parametrize("event", EVERY_KIND, ids=lambda event: type(event).__name__)
def test_every_event_is_read_as_it_was_written(tmp_path: Path, event: Event) -> None:
    assert read(written(tmp_path, [(1.5, event)])) == [(1.5, event)]


def test_every_event_type_is_tested() -> None:
    assert {type(event).__name__ for event in EVERY_KIND} == {kind.__name__ for kind in Event.__args__}


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(min_value=1, max_value=400), max_size=30))
def test_a_log_that_grows_in_pieces_is_read_like_a_whole_one(tmp_path: Path, cuts: list[int]) -> None:
    whole = (written(tmp_path / "whole", [(n / 10, event) for n, event in enumerate(EVERY_KIND)]) / FILE).read_bytes()
    reader, pieces = LogReader(tmp_path), list[tuple[float, Event]]()
    for end in (*sorted(sum(cuts[:n]) for n in range(len(cuts))), len(whole)):
        (tmp_path / FILE).write_bytes(whole[:end])
        pieces += reader.read()
    assert pieces == read(tmp_path / "whole")
    assert reader.is_closed


def test_time_between_processes_counts_for_nothing_and_a_torn_line_is_passed_over(tmp_path: Path) -> None:
    folder = written(tmp_path, [(0.0, STARTED := started()[0][1]), (2.0, AgentStarted("a", 0))], is_closed=False)
    with (folder / FILE).open("ab") as file:
        file.write(b'[1700000003.0,"TurnSta')  # killed here
    recording = EventRecorder(folder)
    recording.take(BEGAN + 9000, STARTED)
    recording.take(BEGAN + 9001, AgentStarted("b", 1))
    recording.close()
    reader = LogReader(folder)
    assert [at for at, _ in reader.read()] == [0.0, 2.0, 2.0, 3.0]
    assert reader.processes == [0.0, 2.0]
    assert reader.is_closed


def test_a_process_that_ends_late_does_not_close_the_log_of_the_next(tmp_path: Path) -> None:
    lines = [opened_line(BEGAN), opened_line(BEGAN + 5), closed_line(BEGAN + 6, BEGAN)]
    (tmp_path / FILE).write_bytes(b"".join(lines))
    reader = LogReader(tmp_path)
    assert list(reader.read()) == []
    assert not reader.is_closed


def test_a_clock_that_is_set_back_stands_still_and_then_goes_on(tmp_path: Path) -> None:
    times = (0.0, 10.0, -3600.0, -3599.0)
    (tmp_path / FILE).write_bytes(opened_line(BEGAN) + b"".join(event_line(BEGAN + at, Resumed()) for at in times))
    assert [at for at, _ in read(tmp_path)] == [0.0, 10.0, 10.0, 11.0]


def test_unknown_events_of_a_newer_version_are_ignored_and_its_failures_counted(tmp_path: Path) -> None:
    newer = event_line(BEGAN, failed("a", 0)).replace(b'"server"', b'"bored"')
    (tmp_path / FILE).write_bytes(
        opened_line(BEGAN) + b'[1700000001.0,"Dreamt","",{"of":1}]\n[2,"TurnStarted"]\n7\n' + newer
    )
    [(_, event)] = read(tmp_path)
    assert isinstance(event, AgentFinished)
    assert event.result.error is not None
    assert (event.result.error.kind, event.result.error.message) == (ErrorKind.INTERNAL, "bored: no")


def test_a_log_of_a_newer_format_is_not_guessed_at(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b'[1.0,"Opened","",2]\n' + event_line(BEGAN, Resumed()))
    reader = LogReader(tmp_path)
    for _ in range(2):
        with pytest.raises(StoreError, match="newer version"):
            list(reader.read())


def test_another_log_in_the_place_of_the_first_is_noticed(tmp_path: Path) -> None:
    reader = LogReader(written(tmp_path, [(0.0, Resumed())]))
    assert len(list(reader.read())) == 1
    assert not reader.is_replaced()
    longer = opened_line(BEGAN + 1) + event_line(BEGAN + 1, Resumed()) * 9
    (tmp_path / FILE).write_bytes(longer)
    assert reader.is_replaced()


class Answer(BaseModel):
    text: str


_endless: dict[str, Any] = {}
_endless["more"] = _endless


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("half \ud800", "half ?"),
        ({"half": "\udfff"}, "the model's words"),
        ({"n": 2**70}, "the model's words"),
        (_endless, "the model's words"),
        ({"n": float("nan")}, '{"n":null}'),
        (Answer(text="yes"), '{"text":"yes"}'),
        ("long " * 10_000, "long " * 60),
    ],
    ids=["half", "half inside", "huge", "endless", "nan", "model", "long"],
)
def test_no_answer_is_too_strange_for_the_log(tmp_path: Path, output: Any, said: str) -> None:
    event = AgentFinished(AgentResult(0, "a", output=output, text="the model's words"), resumed=False)
    [(_, found)] = read(written(tmp_path, [(0.0, event)]))
    assert isinstance(found, AgentFinished)
    assert found.result.text == said


def test_messages_are_cut_and_half_characters_in_them_replaced(tmp_path: Path) -> None:
    events: list[Event] = [
        RequestRetried("a", ErrorKind.SERVER, "\ud800" * 10**6, 1.0),
        Notice("x" * 10**6),
        Paused(1.0, "\ud800"),
    ]
    read_back = [event for _, event in read(written(tmp_path, [(0.0, event) for event in events]))]
    assert read_back == [RequestRetried("a", ErrorKind.SERVER, "?" * 300, 1.0), Notice("x" * 300), Paused(1.0, "?")]
    huge = turn("a", 1, Usage(2**70, 0, 0))
    [(_, found)] = read(written(tmp_path, [(0.0, huge)]))
    assert isinstance(found, TurnEnded)
    assert found.usage.input == 2**63 - 1


async def test_a_disk_that_is_full_costs_the_report_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).symlink_to("/dev/full")
    with caplog.at_level(logging.WARNING, "batch_agent"):
        results = await run(tmp_path)
    assert [result.output for result in results] == ["yes", "yes"]
    assert "cannot be written and ends here: No space left on device" in caplog.text
    assert not (tmp_path / "report.html").exists()


async def test_a_log_that_cannot_be_opened_costs_the_report_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).mkdir()
    with caplog.at_level(logging.WARNING, "batch_agent"):
        results = await run(tmp_path)
    assert [result.output for result in results] == ["yes", "yes"]
    assert "Is a directory" in caplog.text


async def test_a_run_that_is_refused_leaves_the_log_alone(tmp_path: Path) -> None:
    going, refused = asyncio.Event(), asyncio.Event()

    async def answer(_: Any) -> Any:
        going.set()
        await refused.wait()
        return say("yes")

    async with asyncio.TaskGroup() as group:
        first = group.create_task(run(tmp_path, ScriptedBackend(answer)))
        await going.wait()
        with pytest.raises(StoreError, match="Another run is using"):
            await run(tmp_path)
        refused.set()
    assert len(first.result()) == 2
    reader = LogReader(tmp_path)
    assert sum(isinstance(event, RunStarted) for _, event in reader.read()) == 1
    assert reader.processes == [0.0]
    assert reader.is_closed


async def test_a_run_whose_tools_leave_the_folder_has_its_report_where_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def answer(_: Any) -> Any:
        monkeypatch.chdir(tmp_path / "there")
        return say("yes")

    await run(Path("run"), ScriptedBackend(answer))
    assert (tmp_path / "here" / "run" / "report.html").exists()


async def test_one_recording_can_be_used_again(tmp_path: Path) -> None:
    recording = EventRecorder(tmp_path)
    for _ in range(2):
        for at, event in started(("a", 0)):
            recording.take(BEGAN + at, event)
        recording.close()
    reader = LogReader(tmp_path)
    assert len(list(reader.read())) == 4
    assert len(reader.processes) == 2


async def test_a_resumed_answer_takes_little_room_in_the_log(tmp_path: Path) -> None:
    await real_run(tmp_path)
    first = (tmp_path / FILE).stat().st_size
    await real_run(tmp_path)
    assert (tmp_path / FILE).stat().st_size < 1.4 * first


async def run(folder: Path, backend: ScriptedBackend | None = None) -> list[AgentResult]:
    asked = backend or ScriptedBackend(lambda request: say("yes"))
    return await BatchAgent.run(task="Say {it}", inputs=["a", "b"], backend=asked, checkpoint_dir=folder)
