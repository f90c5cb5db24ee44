"""A flow as it goes: the numbers of its stages, in a terminal and in a log."""

import io

import pytest
from rich.console import Console

from batch_agent import ErrorKind, Flow
from batch_agent.core.events import (
    AgentFinished,
    AgentStarted,
    Event,
    FlowStarted,
    InStage,
    Notice,
    Paused,
    Queued,
    Resumed,
    RunStarted,
)
from batch_agent.core.requests import Usage
from batch_agent.core.results import AgentError, AgentResult
from batch_agent.observe import stages
from batch_agent.observe.stages import FlowTally, LiveStages, PlainStages, flow_progress_for
from batch_agent.testing import ScriptedBackend, say

EVENTS: list[Event] = [
    FlowStarted(("review", "report")),
    InStage("review", RunStarted("vllm", "m", 8, 3)),
    InStage("report", RunStarted("vllm", "m", 8, None)),
    InStage("review", AgentStarted("a", 0)),
    InStage("review", AgentStarted("b", 1)),
    InStage("review", AgentFinished(AgentResult(0, "a", usage=Usage(1000, 0, 234)), resumed=False)),
    InStage("review", AgentFinished(AgentResult(2, "c", error=AgentError(ErrorKind.SERVER, "boom")), resumed=True)),
    InStage("report", Queued()),
    InStage("report", Queued()),
    InStage("report", AgentStarted("r", 0)),
]


def test_each_stage_has_numbers_of_its_own() -> None:
    tally = FlowTally()
    assert not tally.has_begun
    for event in EVENTS:
        tally.emit(event)
    assert tally.has_begun
    review, report = tally.stages.values()
    assert (review.done, review.failed, review.running, review.resumed) == (2, 1, 1, 1)
    assert (report.done, report.running) == (0, 1)
    assert (tally.of("review"), tally.of("report")) == (3, 2)


def test_what_nobody_knows_yet_has_no_end() -> None:
    tally = FlowTally()
    tally.emit(FlowStarted(("review", "report")))
    tally.emit(InStage("report", RunStarted("vllm", "m", 8, None)))
    assert tally.of("report") is None
    assert stages.stage_numbers(tally.stages["report"], None) == ["0 done", "0 running", "0 tokens"]


def shown(progress: LiveStages) -> str:
    console = Console(file=io.StringIO(), width=120)
    with console.capture() as capture:
        console.print(progress._render())
    return " ".join(capture.get().split())


def test_a_terminal_gets_a_line_for_each_stage() -> None:
    with LiveStages(Console(file=io.StringIO(), force_terminal=True, width=120)) as progress:
        assert shown(progress) == "Connecting ..."
        progress.emit(FlowStarted(("review", "report")))
        progress.emit(InStage("review", Notice("Starting the model ...")))
        assert shown(progress) == "Starting the model ..."
        for event in EVENTS:
            progress.emit(event)
        assert "2 of 3 done 1 running 1,234 tokens 1 failed" in shown(progress)
        assert "0 of 2 done 1 running 0 tokens 0 failed" in shown(progress)
        progress.emit(Paused(5.0, "rate limited"))
        assert "waiting: rate limited" in shown(progress)
        progress.emit(Resumed())
        assert "waiting" not in shown(progress)


def test_a_log_gets_notices_at_once_and_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "_SECONDS_BETWEEN_LINES", 0.0)
    stream = io.StringIO()
    with PlainStages(stream) as progress:
        progress.emit(Notice("Connecting ..."))
        for event in EVENTS:
            progress.emit(event)
        progress.emit(InStage("report", Notice("Almost done.")))
    lines = stream.getvalue().splitlines()
    assert (lines[0], lines[-1]) == ("Connecting ...", "Almost done.")
    expected = "review: 2 of 3 done, 1 running, 1,234 tokens; report: 0 of 2 done, 1 running, 0 tokens"
    assert lines[-2] == expected


def test_a_pipe_gets_plain_lines() -> None:
    assert isinstance(flow_progress_for(io.StringIO()), PlainStages)


@pytest.mark.parametrize("is_terminal", [False, True])
async def test_a_flow_is_shown_from_its_first_event_to_its_last(is_terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    progress = LiveStages(console) if is_terminal else PlainStages(io.StringIO())
    backend = ScriptedBackend(lambda request: say("ok", Usage(10, 0, 1)))
    flow = Flow([{"it": n} for n in range(6)], backend=backend).map("a", "A {it}").filter(lambda item: item["it"] > 1)
    await flow.map("b", "B {it}").reduce("all", "Join {n}").run(events=progress)
    tally = progress.tally
    assert [(stage.done, tally.of(name), stage.running) for name, stage in tally.stages.items()] == [
        (6, 6, 0),
        (4, 4, 0),
        (1, 1, 0),
    ]
    assert [stage.usage.input for stage in tally.stages.values()] == [60, 40, 10]
