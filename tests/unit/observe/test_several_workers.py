"""A run that several workers share, as each view has it: what they do adds up, and an agent that moves counts once."""

import io
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest
from tests.support.event_list import state_after
from tests.support.event_logs import answered, seen, segments, turn, written

from batch_agent import ErrorKind, Usage
from batch_agent.core.events import (
    AgentReassigned,
    AgentStarted,
    CallsEnded,
    CallsStarted,
    Event,
    LimitChanged,
    LoadSampled,
    Notice,
    Paused,
    RequestRetried,
    Resumed,
    RunStarted,
    StageEvent,
    Steered,
    ToolsUsed,
    TurnStarted,
    WorkerEvent,
)
from batch_agent.core.results import CallRecord, ToolUse
from batch_agent.observe.event_codec import event_line, read_line
from batch_agent.observe.live.dashboard import render
from batch_agent.observe.live.progress import PlainProgress
from batch_agent.observe.live.state import LiveState
from batch_agent.observe.run_stats import CapacityTotals
from batch_agent.observe.telemetry.metrics import Metrics
from batch_agent.observe.telemetry.traces import Traces
from batch_agent.observe.text.summary import saved_by_sharing

USAGE = Usage(100, 60, 10)
BEGINS = RunStarted("vllm", "m", 8, 2)
MOVES: list[tuple[float, Event]] = [
    (0.0, BEGINS),
    (0.0, AgentStarted("b", 1)),
    (1.0, WorkerEvent("v", AgentStarted("a", 0))),
    (1.0, WorkerEvent("v", TurnStarted("a", 1))),
    (2.0, WorkerEvent("v", turn("a", 1, USAGE))),
    (2.0, WorkerEvent("v", CallsStarted("a", 1, ("look",)))),
    (4.0, WorkerEvent("v", AgentReassigned("a"))),
    (5.0, WorkerEvent("w", AgentStarted("a", 0))),
    (5.0, WorkerEvent("w", TurnStarted("a", 2))),
    (6.0, WorkerEvent("w", turn("a", 2, USAGE))),
    (6.0, answered("a", 0, usage=USAGE + USAGE)),
    (7.0, turn("b", 1, USAGE)),
    (8.0, answered("b", 1, usage=USAGE)),
]
"""An agent whose worker was lost in the middle, and one of the process that asked."""


@pytest.mark.parametrize(
    "event",
    [
        WorkerEvent("w", TurnStarted("a", 2)),
        WorkerEvent("w", Paused(1.0, "busy")),
        StageEvent("s", WorkerEvent("w", AgentReassigned("a"))),
    ],
    ids=["often", "rarely", "in a flow"],
)
def test_a_line_is_read_on_its_own_as_it_was_written(event: Event) -> None:
    assert read_line(event_line(1.25, event)) == (1.25, event)


def test_an_agent_that_moves_is_one_agent_on_the_board() -> None:
    state = LiveState()
    under_way = []
    for _, event in MOVES:
        state.emit(event)
        under_way.append(len(state.stages[""].agents))
    assert under_way == [0, 1, 2, 2, 2, 2, 1, 2, 2, 2, 1, 1, 0]
    assert (state.run_stats.done, state.turn_usage, state.turns) == (2, USAGE + USAGE + USAGE, {"": 1, "v": 1, "w": 1})


def test_an_agent_that_moves_is_one_agent_in_the_report(tmp_path: Path) -> None:
    model = seen(written(tmp_path, MOVES))
    [stage] = model["stages"]
    assert (stage["started"], stage["answered"], stage["turns"], model["state"]) == (2, 2, 3, "finished")
    assert segments(model)[0, 0] == [(1, 100, 200), (2, 200, 400), (1, 500, 600)]
    assert model["activity"]["done"][-1] == 2
    [kept] = [row for row in model["savings"] if row["name"] == "tokens not paid again after a restart"]
    assert kept["saved"] == 110  # the turn that was behind it


def test_the_report_says_what_each_worker_did(tmp_path: Path) -> None:
    used = {"input": 100, "cached": 60, "written": 0, "output": 10}
    assert seen(written(tmp_path, MOVES))["workers"] == [
        {"name": "", "agents": 1, "turns": 1, "usage": used, "cost": None},
        {"name": "v", "agents": 0, "turns": 1, "usage": used, "cost": None},
        {"name": "w", "agents": 1, "turns": 1, "usage": used, "cost": None},
    ]
    alone = [(at, event) for at, event in MOVES if not isinstance(event, WorkerEvent)]
    assert seen(written(tmp_path, alone))["workers"] == []


def test_an_agent_that_has_left_is_not_counted_until_it_is_heard_of_again(tmp_path: Path) -> None:
    model = seen(written(tmp_path, MOVES[:7], is_closed=False))
    assert (model["stages"][0]["started"], model["timeline"]["index"]) == (1, [1])
    assert model["activity"]["tools"][-1] == 0
    theirs = [(0.0, RunStarted("vllm", "m", 8, None)), *MOVES[1:7], *MOVES[-2:]]
    finished = seen(written(tmp_path, theirs))  # the one that left was another caller's
    assert (finished["stages"][0]["started"], finished["state"]) == (1, "finished")


def test_an_agent_that_moves_is_one_agent_for_prometheus() -> None:
    metrics = Metrics(registry=(registry := CollectorRegistry()))
    for at, event in MOVES[:-1]:
        metrics.take(at, event)
    metrics.flush()
    now = generate_latest(registry).decode()
    assert 'outcome="answered",stage=""} 1.0' in now
    for name, value in (("inputs", 2.0), ("inputs_left", 1.0)):
        assert f'batch_agent_{name}{{backend="vllm",model="m",stage=""}} {value}' in now
    assert 'kind="input",model="m",stage=""} 300.0' in now
    metrics.close()


def test_an_agent_that_moves_leaves_a_span_that_says_so() -> None:
    provider, memory = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    traces = Traces(provider)
    for at, event in MOVES:
        traces.take(at, event)
    for late in (
        turn("a", 2, USAGE),
        TurnStarted("a", 3),
        CallsStarted("a", 3, ("look",)),
        CallsEnded("a", 3, (), 1.0),
    ):
        traces.take(9.0, WorkerEvent("v", late))  # of an agent that is done
    traces.take(9.0, WorkerEvent("v", RequestRetried("a", ErrorKind.SERVER, "no", 1.0)))
    traces.close()
    spans = [
        (span.name, span.end_time, (span.attributes or {}).get("error.type")) for span in memory.get_finished_spans()
    ]
    second = 1_000_000_000
    assert spans == [
        ("chat m", 2 * second, None),
        ("execute_tool look", 4 * second, "reassigned"),
        ("invoke_agent", 4 * second, "reassigned"),
        ("chat m", 6 * second, None),
        ("invoke_agent", 6 * second, None),
        ("invoke_agent", 8 * second, None),
        ("invoke_workflow", 9 * second, None),
    ]


def test_parts_of_a_backend_add_up_and_what_its_server_says_does_not() -> None:
    fullness = CapacityTotals()
    first = LoadSampled("vllm", 3, 8, 1, 5, 1000, 4000, 0.5, 6, 1)
    assert fullness.add("", first) == first
    assert fullness.add("w", LoadSampled("sglang", 1, 2)) == LoadSampled("sglang", 1, 2)
    both = fullness.add("w", LoadSampled("vllm", 2, 8, 0, 4, 500, 4000, 0.6, None, None))
    assert both == LoadSampled("vllm", 5, 16, 1, 9, 1500, 8000, 0.6, 6, 1)
    assert fullness.add("w", LoadSampled("vllm", 0, 0)) == first


def test_every_view_shows_how_full_a_backend_is_of_all_workers(tmp_path: Path) -> None:
    samples: list[Event] = [
        LoadSampled("vllm", 3, 8, server_running=5),
        WorkerEvent("w", LoadSampled("vllm", 2, 8, server_running=5)),
    ]
    series = seen(written(tmp_path, [(0.0, BEGINS), *((10.0 * at, each) for at, each in enumerate(samples, 1))]))[
        "series"
    ]
    assert (series["inflight"], series["limit"], series["server_running"]) == ([3, 5], [8, 16], [5, 5])
    assert state_after(BEGINS, *samples).backends == {"vllm": LoadSampled("vllm", 5, 16, server_running=5)}
    metrics = Metrics(registry=(registry := CollectorRegistry()))
    for event in (BEGINS, *samples):
        metrics.take(0.0, event)
    assert 'batch_agent_slots_limit{backend="vllm"} 16.0' in generate_latest(registry).decode()
    metrics.close()


def test_notices_of_a_worker_have_its_name(tmp_path: Path) -> None:
    state = state_after(
        BEGINS, WorkerEvent("w", Notice("loading")), Paused(1.0, "busy"), WorkerEvent("w", Paused(2.0, "away"))
    )
    assert (state.notice, state.paused) == ("w: loading", "busy; w: away")
    state.emit(Resumed())
    assert state.paused == "w: away"
    happened: list[tuple[float, Event]] = [
        (0.0, BEGINS),
        (1.0, WorkerEvent("w", Paused(2.0, "away"))),
        (2.0, WorkerEvent("w", LimitChanged(4, "room"))),
    ]
    model = seen(written(tmp_path, happened))
    assert model["pauses"] == [{"at": 1.0, "seconds": 2.0, "reason": "w: away"}]
    assert model["limits"] == [{"at": 2.0, "inflight": 4, "reason": "w: room"}]
    PlainProgress(stream := io.StringIO()).emit(WorkerEvent("w", Notice("loading")))
    assert stream.getvalue() == "w: loading\n"


def test_the_pause_metric_is_set_until_no_worker_pauses() -> None:
    metrics = Metrics(registry=(registry := CollectorRegistry()))
    paused = []
    for event in (
        BEGINS,
        Paused(1.0, "busy"),
        WorkerEvent("w", Paused(1.0, "busy")),
        Resumed(),
        WorkerEvent("w", Resumed()),
    ):
        metrics.take(0.0, event)
        paused.append("batch_agent_paused 1.0" in generate_latest(registry).decode())
    assert paused == [False, True, True, True, False]
    metrics.close()


def test_a_run_that_its_user_pauses_is_paused_until_that_user_resumes_it() -> None:
    metrics = Metrics(registry=(registry := CollectorRegistry()))
    paused = []
    for event in (BEGINS, Steered("pause", "no", "yes"), Paused(1.0, "busy"), Resumed(), Steered("pause", "yes", "no")):
        metrics.take(0.0, event)
        paused.append("batch_agent_paused 1.0" in generate_latest(registry).decode())
    assert paused == [False, True, True, True, False]
    metrics.close()


def test_the_dashboard_names_workers_where_there_are_several() -> None:
    def workers(*events: tuple[float, Event]) -> list[str]:
        lines = [line.plain.rstrip() for line in render(state_after(*(event for _, event in events)), 9.0, 120, 40)]
        return [line for line in lines if line.startswith("workers")]

    assert workers(*MOVES, (9.0, WorkerEvent("w", turn("c", 1, USAGE)))) == [
        "workers    3  w 2 turns  v 1 turn  this process 1 turn"
    ]
    assert workers(*(each for each in MOVES if not isinstance(each[1], WorkerEvent))) == []


def calls(*sources: Any) -> CallsEnded:
    return CallsEnded("a", 1, tuple(CallRecord("look", "", True, 2.0, source) for source in sources), 2.0)


def test_tools_of_all_workers_add_up_with_their_own_account_or_without(tmp_path: Path) -> None:
    happened: list[tuple[float, Event]] = [
        (0.0, BEGINS),
        (1.0, calls("executed")),
        (1.0, WorkerEvent("v", calls("shared", "cached"))),
        (1.0, WorkerEvent("w", calls("executed", "shared"))),
        (2.0, ToolsUsed((ToolUse("look", 1, 1, seconds=2.0),))),
        (2.0, WorkerEvent("v", ToolsUsed((ToolUse("look", 2, 0, 1, 1, seconds_saved=4.0),), USAGE))),
    ]
    [tool] = seen(written(tmp_path, happened))["tools"]
    counted = (tool["requested"], tool["executed"], tool["shared"], tool["cached"], tool["seconds_saved"])
    assert counted == (5, 2, 2, 1, None)  # of one that was killed, nobody knows what it saved
    accounts = [
        *happened,
        (3.0, WorkerEvent("w", ToolsUsed((ToolUse("look", 2, 1, 1, seconds=2.0, seconds_saved=2.0),)))),
    ]
    model = seen(written(tmp_path, accounts))
    [tool] = model["tools"]
    counted = (tool["requested"], tool["executed"], tool["shared"], tool["cached"], tool["seconds_saved"])
    assert counted == (5, 2, 2, 1, 6.0)
    assert model["stages"][0]["usage"]["input"] == 100  # of summaries
    state = state_after(*(event for _, event in accounts))
    saved = saved_by_sharing(Counter[str](state.tools.total.sources), state.tools)
    assert saved == ", 2 of them executed, 3 shared (6 s of tool time saved)"
