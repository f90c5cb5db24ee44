"""A flow as it goes: the numbers of its stages, in a terminal and in a log."""

import io

import pytest
from rich.console import Console
from tests.support.event_list import state_after

from batch_agent import ErrorKind, Flow
from batch_agent.core.events import (
    AgentFinished,
    AgentStarted,
    Event,
    FlowStarted,
    ItemQueued,
    Notice,
    Paused,
    Resumed,
    RunStarted,
    StageEvent,
)
from batch_agent.core.requests import Usage
from batch_agent.core.results import AgentError, AgentResult
from batch_agent.observe.live import progress as progress_module
from batch_agent.observe.live.dashboard import render
from batch_agent.observe.live.progress import PlainProgress, Progress
from batch_agent.observe.live.state import LiveState
from batch_agent.observe.live.terminal import LiveProgress
from batch_agent.testing import ScriptedBackend, say

EVENTS: list[Event] = [
    FlowStarted(("review", "report")),
    StageEvent("review", RunStarted("vllm", "m", 8, 3)),
    StageEvent("report", RunStarted("vllm", "m", 8, None)),
    StageEvent("review", AgentStarted("a", 0)),
    StageEvent("review", AgentStarted("b", 1)),
    StageEvent("review", AgentFinished(AgentResult(0, "a", usage=Usage(1000, 0, 234)), resumed=False)),
    StageEvent("review", AgentFinished(AgentResult(2, "c", error=AgentError(ErrorKind.SERVER, "boom")), resumed=True)),
    StageEvent("report", ItemQueued()),
    StageEvent("report", ItemQueued()),
    StageEvent("report", AgentStarted("r", 0)),
]


def shown(state: LiveState) -> list[str]:
    return [line.plain for line in render(state, 5.0, 100, 30)]


def test_each_stage_has_numbers_of_its_own() -> None:
    assert not LiveState().has_started
    state = state_after(*EVENTS)
    assert state.has_started
    assert state.is_flow
    review, report = (stage.stats for stage in state.stages.values())
    assert (review.done, review.failed, review.resumed) == (2, 1, 1)
    assert report.done == 0
    assert [len(stage.agents) for stage in state.stages.values()] == [1, 1]
    assert [stage.total for stage in state.stages.values()] == [3, 2]


def test_a_stage_of_unknown_size_has_no_remaining_time() -> None:
    state = state_after(*EVENTS[:3])
    assert state.stages["report"].total is None
    assert state.seconds_left is None
    assert shown(state)[2].endswith("0 done")


def test_a_terminal_gets_a_line_for_each_stage() -> None:
    state = LiveState()
    assert shown(state) == ["Connecting ..."]
    state.emit(EVENTS[0])
    state.emit(StageEvent("review", Notice("Starting the model ...")))
    assert shown(state) == ["Starting the model ..."]
    for event in EVENTS:
        state.emit(event)
    head, review, report, *rest = shown(state)
    assert head.startswith("m on vllm ")
    assert review.startswith("review ━")
    assert review.endswith("  2 of 3  67%")
    assert report.startswith("report ━")
    assert report.endswith("  0 of 2  0%")
    assert "errors     1  review server  boom" in rest
    state.emit(Paused(5.0, "rate limited"))
    assert "paused     rate limited" in shown(state)
    state.emit(Resumed())
    assert "paused" not in "".join(shown(state))


def test_a_log_gets_notices_at_once_and_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "_LINE_INTERVAL", 0.0)
    stream = io.StringIO()
    with PlainProgress(stream) as progress:
        progress.emit(Notice("Connecting ..."))
        for event in EVENTS:
            progress.emit(event)
        progress.emit(StageEvent("report", Notice("Almost done.")))
    lines = stream.getvalue().splitlines()
    assert (lines[0], lines[-1]) == ("Connecting ...", "Almost done.")
    assert lines[-2].startswith("review: 2 of 3 done, 1 running, 1 failed; report: 0 of 2 done, 1 running; ")


@pytest.mark.parametrize("is_terminal", [False, True])
async def test_a_flow_is_shown_from_its_first_event_to_its_last(is_terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    progress: Progress = LiveProgress(console) if is_terminal else PlainProgress(io.StringIO())
    backend = ScriptedBackend(lambda request: say("ok", Usage(10, 0, 1)))
    flow = Flow([{"it": n} for n in range(6)], backend=backend).map("a", "A {it}").filter(lambda item: item["it"] > 1)
    await flow.map("b", "B {it}").reduce("all", "Join {n}").run(events=progress)
    stages = progress.state.stages.values()
    assert [(stage.stats.done, stage.total, len(stage.agents)) for stage in stages] == [(6, 6, 0), (4, 4, 0), (1, 1, 0)]
    assert [stage.stats.usage.input for stage in stages] == [60, 40, 10]
