"""What is to be seen of a run, folded from logs of real runs and from some that were written by hand."""

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.event_logs import (
    STARTED,
    answered,
    failed,
    real_flow,
    real_run,
    seen,
    segments,
    started,
    turn,
    written,
)

from batch_agent import BatchAgent, ErrorKind, Usage
from batch_agent.core.events import (
    AgentStarted,
    CallsEnded,
    CallsStarted,
    EndpointChanged,
    Event,
    ItemQueued,
    LimitChanged,
    LoadSampled,
    Paused,
    RequestRetried,
    RunStarted,
    StageEvent,
    Steered,
    ToolsUsed,
    TurnStarted,
)
from batch_agent.core.results import CallRecord, ToolUse
from batch_agent.observe.event_log import FILE
from batch_agent.observe.report.distribution import Distribution
from batch_agent.observe.report.log_follower import LogFollower
from batch_agent.observe.report.series import Series
from batch_agent.observe.report.timeline import DONE, GENERATING, TOOLS, WAITING, Activity
from batch_agent.testing import ScriptedBackend, say

GROWING = ("started", "turns", "retries", "compactions")


@pytest.fixture(scope="module")
def real_log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Of a run with retries, tools and a failure, which was resumed twice, and of a flow after it."""
    folder = tmp_path_factory.mktemp("real")
    asyncio.run(real_run(folder, refuses=True))
    for _ in range(2):
        asyncio.run(real_run(folder))
    asyncio.run(real_flow(folder))
    return (folder / FILE).read_bytes()


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.floats(min_value=0, max_value=1), min_size=1, max_size=4))
def test_any_beginning_of_a_log_can_be_seen_and_counts_only_grow(
    tmp_path_factory: pytest.TempPathFactory, real_log: bytes, cuts: list[float]
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    following, before = LogFollower(folder), dict.fromkeys(GROWING, 0)
    for end in [round(cut * len(real_log)) for cut in sorted(cuts)]:
        (folder / FILE).write_bytes(real_log[:end])
        assert not following.poll()
        model = following.model()
        segments(model)
        counts = {name: sum(stage[name] for stage in model["stages"]) for name in GROWING}
        assert all(counts[name] >= before[name] for name in GROWING)
        before = counts
    if following.has_log:
        assert {**model, "now": 0} == {**seen(folder), "now": 0}  # read in pieces or at once


async def test_a_real_run_is_seen_whole(tmp_path: Path) -> None:
    await real_run(tmp_path, refuses=True)
    model = seen(tmp_path)
    [stage] = model["stages"]
    assert (model["state"], model["title"], model["processes"]) == ("finished", tmp_path.name, [0.0])
    assert (stage["total"], stage["started"], stage["answered"], stage["failed"]) == (12, 12, 11, 1)
    assert stage["states"] == {"waiting": 0, "generating": 0, "tools": 0}
    assert stage["failures"][0]["kind"] == "bad_request"
    assert stage["failures"][0]["examples"][0]["index"] == 5
    assert stage["retries"] == 4
    assert stage["turns"] == 11 * 2 + 3
    assert stage["usage"] == {"input": 1400, "cached": 840, "written": 0, "output": 140}
    assert [each["index"] for each in stage["slowest"] if each["turns"] == 3]
    assert sorted(model["timeline"]["index"]) == list(range(12))
    assert model["timeline"]["ok"].count(1) == 11
    [tool] = model["tools"]
    assert (tool["name"], tool["requested"]) == ("look", 11)
    assert tool["executed"] + tool["shared"] + tool["cached"] == 11
    assert model["distributions"]["turn"]["count"] == stage["turns"]
    assert model["distributions"]["agent"]["count"] == 12
    assert model["activity"]["done"][-1] == 12


async def test_a_run_that_is_resumed_counts_every_agent_once(tmp_path: Path) -> None:
    await real_run(tmp_path, refuses=True)
    for _ in range(3):
        await real_run(tmp_path)
    model = seen(tmp_path)
    [stage] = model["stages"]
    assert len(model["processes"]) == 4
    assert (stage["started"], stage["answered"], stage["failed"], stage["resumed"]) == (12, 12, 0, 12)
    assert stage["failures"] == []
    assert stage["usage"]["input"] == 1500  # as in a run at once: nothing was asked twice
    assert all(segments(model).values())


async def test_a_flow_is_seen_stage_by_stage(tmp_path: Path) -> None:
    await real_flow(tmp_path)
    model = seen(tmp_path)
    draft, total = model["stages"]
    assert (draft["name"], draft["total"], draft["answered"]) == ("draft", 6, 6)
    assert (total["name"], total["total"], total["answered"]) == ("sum", 1, 1)
    assert model["timeline"]["stage"] == [0] * 6 + [1]
    assert model["state"] == "finished"


async def test_another_task_in_the_same_folder_takes_the_place_of_the_first(tmp_path: Path) -> None:
    for task in ("Say {it}", "Sing {it}"):
        await BatchAgent.run(
            task=task, inputs=["a", "b"], backend=ScriptedBackend(lambda request: say("la")), checkpoint_dir=tmp_path,
            plan_changed="rerun",
        )  # fmt: skip
    model = seen(tmp_path)
    assert (model["stages"][0]["started"], model["stages"][0]["answered"]) == (2, 2)
    assert model["timeline"]["index"] == [0, 1]
    assert model["stages"][0]["turns"] == 4


def test_segments_are_turns_and_tools_and_what_lies_between_is_waiting(tmp_path: Path) -> None:
    events: list[tuple[float, Event]] = [
        *started(("a", 0)),
        (1.0, TurnStarted("a", 1)),
        (1.5, RequestRetried("a", ErrorKind.SERVER, "no", 0.5)),
        (2.0, TurnStarted("a", 1)),
        (3.0, turn("a", 1, Usage())),
        (3.0, CallsStarted("a", 1, ("look",))),
        (7.25, CallsEnded("a", 1, (), 4.25)),
        (8.0, TurnStarted("a", 2)),
        (9.0, LoadSampled("vllm", 1, 8)),
    ]
    model = seen(written(tmp_path, events, is_closed=False))
    assert segments(model) == {(0, 0): [(1, 100, 150), (1, 200, 300), (2, 300, 725), (1, 800, 900)]}
    assert model["timeline"]["ok"] == [2]
    assert model["stages"][0]["states"] == {"waiting": 0, "generating": 0, "tools": 0}
    assert model["state"] == "ended early"
    ended = seen(written(tmp_path, [*events, (9.5, failed("a", 0))]))
    assert segments(ended)[0, 0][-1] == (1, 800, 950)
    assert ended["timeline"]["ok"] == [0]


def test_parts_of_a_long_input_are_their_agents_doing(tmp_path: Path) -> None:
    events: list[tuple[float, Event]] = [
        *started(("a", 0)),
        (1.0, TurnStarted("a.part1", 1)),
        (2.0, TurnStarted("a.part2", 1)),
        (3.0, turn("a.part1", 1, Usage(10, 0, 1))),
        (3.0, CallsStarted("a.part1", 1, ("look",))),
        (4.0, turn("a.part2", 1, Usage(10, 0, 1))),
        (6.0, CallsEnded("a.part1", 1, (), 3.0)),
        (7.0, TurnStarted("a.merge1.1", 1)),
        (8.0, answered("a", 0)),
    ]
    model = seen(written(tmp_path, events))
    assert segments(model) == {(0, 0): [(1, 100, 400), (2, 400, 600), (1, 700, 800)]}
    assert model["stages"][0]["started"] == 1
    assert model["stages"][0]["usage"]["input"] == 20


def test_running_segments_of_a_killed_process_end_with_it(tmp_path: Path) -> None:
    first: list[tuple[float, Event]] = [
        *started(("a", 0), ("b", 1)),
        (1.0, TurnStarted("a", 1)),
        (4.0, LoadSampled("v", 1, 8)),
    ]
    second: list[tuple[float, Event]] = [*started(("a", 0)), (2.0, TurnStarted("a", 1)), (3.0, answered("a", 0))]
    folder = written(tmp_path, first, second, is_closed=False)
    model = seen(folder)
    assert model["processes"] == [0.0, 4.0]
    assert segments(model) == {(0, 0): [(1, 100, 400), (1, 600, 700)], (0, 1): []}
    assert (model["stages"][0]["started"], model["stages"][0]["answered"]) == (2, 1)
    assert model["activity"]["waiting"][-1] == 0
    assert model["state"] == "ended early"


def test_an_answer_that_the_killed_process_could_not_log_is_there_when_it_is_resumed(tmp_path: Path) -> None:
    first: list[tuple[float, Event]] = [*started(("a", 0)), (1.0, TurnStarted("a", 1))]
    second: list[tuple[float, Event]] = [(0.0, STARTED), (0.5, answered("a", 0, resumed=True))]
    [stage] = seen(written(tmp_path, first, second))["stages"]
    assert (stage["answered"], stage["resumed"], stage["started"]) == (1, 1, 1)
    assert stage["latest"] == []


def test_answers_that_only_the_checkpoint_knows_count_with_what_they_used(tmp_path: Path) -> None:
    recalled: list[tuple[float, Event]] = [(0.0, STARTED), (0.5, answered("a", 0, resumed=True, usage=Usage(10, 5, 1)))]
    [stage] = seen(written(tmp_path, recalled))["stages"]
    assert stage["usage"] == {"input": 10, "cached": 5, "written": 0, "output": 1}


def test_an_input_that_is_refused_needs_no_beginning(tmp_path: Path) -> None:
    model = seen(
        written(tmp_path, [(0.0, STARTED), (1.0, failed("a", 0, ErrorKind.BAD_INPUT)), (1.0, answered("b", 1))])
    )
    assert (model["stages"][0]["failed"], model["stages"][0]["started"], model["state"]) == (1, 2, "finished")
    assert model["distributions"]["agent"] is None


def test_a_running_run_shows_agent_states_throughput_and_remaining_time(tmp_path: Path) -> None:
    agents = [(f"k{n}", n) for n in range(12)]
    events: list[tuple[float, Event]] = [
        (0.0, RunStarted("vllm", "m", 8, 20)),
        *((0.0, AgentStarted(key, index)) for key, index in agents),
        *((1.0 + n, answered(f"k{n}", n)) for n in range(9)),
        (9.5, TurnStarted("k9", 1)),
        (9.5, CallsStarted("k10", 1, ("look",))),
        (10.0, LoadSampled("vllm", 1, 8)),
    ]
    following = LogFollower(written(tmp_path, events, is_closed=False))
    following.read_all()
    (tmp_path / FILE).touch()
    model = following.model()
    assert model["state"] == "running"
    assert model["stages"][0]["states"] == {"waiting": 1, "generating": 1, "tools": 1}
    assert model["throughput"] == {"per_second": 0.9, "eta": 12.2}
    assert [each["index"] for each in model["stages"][0]["latest"]] == [8, 7, 6, 5, 4, 3, 2, 1]


def test_a_later_stage_has_as_many_as_have_come_to_it(tmp_path: Path) -> None:
    events: list[tuple[float, Event]] = [
        (0.0, StageEvent("one", RunStarted("vllm", "m", 8, 1, prices=(1.0, 0.5, 2.0)))),
        (0.0, StageEvent("two", RunStarted("vllm", "m", 8, None))),
        (0.0, StageEvent("one", AgentStarted("a", 0))),
        (1.0, StageEvent("one", turn("a", 1, Usage(1_000_000, 400_000, 100_000)))),
        (1.0, StageEvent("one", answered("a", 0))),
        (1.0, StageEvent("two", ItemQueued())),
    ]
    one, two = seen(written(tmp_path, events))["stages"]
    assert (one["total"], two["total"], two["started"]) == (1, 1, 0)
    assert (one["cost"], two["cost"]) == (0.6 + 0.2 + 0.2, None)


def test_tools_are_counted_by_calls_until_they_account_for_themselves(tmp_path: Path) -> None:
    def calls(*sources: Any) -> CallsEnded:
        return CallsEnded("a", 1, tuple(CallRecord("look", "", True, 2.0, source) for source in sources), 2.0)

    live = seen(written(tmp_path, [*started(("a", 0)), (2.0, calls("executed", "shared", "restored"))]))
    assert (live["tools"][0]["requested"], live["tools"][0]["executed"], live["tools"][0]["shared"]) == (2, 1, 1)
    assert live["tools"][0]["seconds_saved"] is None
    told = ToolsUsed((ToolUse("look", 3, 1, 2, seconds=2.0, seconds_saved=4.0, p50=2.0, p99=2.0),))
    process: list[tuple[float, Event]] = [*started(("a", 0)), (2.0, calls("executed", "shared", "shared")), (3.0, told)]
    [tool] = seen(written(tmp_path, process, process))["tools"]
    assert (tool["requested"], tool["executed"], tool["shared"], tool["seconds_saved"]) == (6, 2, 4, 8.0)


def test_limits_and_pauses_are_told_with_their_times(tmp_path: Path) -> None:
    events: list[tuple[float, Event]] = [
        (0.0, STARTED),
        *((n, LimitChanged(n, "room")) for n in range(60)),
        (60, Paused(2, "busy")),
    ]
    model = seen(written(tmp_path, events))
    assert len(model["limits"]) == 50
    assert model["limits"][-1] == {"at": 59.0, "inflight": 59, "reason": "room"}
    assert model["pauses"] == [{"at": 60.0, "seconds": 2.0, "reason": "busy"}]


def test_what_the_user_changed_is_told_with_its_time_and_added_inputs_are_expected(tmp_path: Path) -> None:
    events: list[tuple[float, Event]] = [
        (0.0, STARTED),
        (3, Steered("max_inflight", "8", "4")),
        (5, Steered("inputs", "2", "5", agents=3)),
    ]
    model = seen(written(tmp_path, events))
    assert model["steered"] == [
        {"at": 3.0, "change": "max_inflight: 8 -> 4"},
        {"at": 5.0, "change": "inputs: 2 -> 5"},
    ]
    assert model["stages"][0]["total"] == 5
    resumed = seen(written(tmp_path, events, [(0.0, replace(STARTED, total=5))]))  # which counts them itself
    assert resumed["stages"][0]["total"] == 5


def test_endpoints_that_joined_and_left_are_told_with_their_times(tmp_path: Path) -> None:
    events: list[tuple[float, Event]] = [
        (0.0, STARTED),
        (3, EndpointChanged("vllm://b:1", "joined", 2)),
        (5, EndpointChanged("vllm://a:1", "draining", 1, 4)),
        (6, EndpointChanged("vllm://a:1", "left", 1)),
    ]
    assert seen(written(tmp_path, events))["endpoints"] == [
        {"at": 3.0, "change": "Endpoint vllm://b:1 joined (2 endpoints)."},
        {"at": 5.0, "change": "Endpoint vllm://a:1 is draining: 4 in flight, no new requests (1 endpoint)."},
        {"at": 6.0, "change": "Endpoint vllm://a:1 left (1 endpoint)."},
    ]


def test_a_log_that_another_run_replaces_is_seen_anew(tmp_path: Path) -> None:
    following = LogFollower(written(tmp_path, started(("a", 0), ("b", 1))))
    following.read_all()
    (tmp_path / FILE).unlink()
    following.poll()
    assert following.model()["state"] == "waiting"
    written(tmp_path, [(0.0, STARTED), (0.0, AgentStarted("c", 7))])
    version = following.version
    following.poll()
    assert following.model()["timeline"]["index"] == [7]
    assert following.version > version
    following.poll()
    assert following.version == version + 1


def test_a_thousand_agents_take_sixty_kilobytes_at_most(tmp_path: Path) -> None:
    events: list[tuple[float, Event]] = [(0.0, RunStarted("vllm", "m", 8, 1000))]
    for n in range(1000):
        key, at = f"{n:024x}", n / 10
        events.append((at, AgentStarted(key, n)))
        for number in (1, 2, 3):
            events += [(at + number, TurnStarted(key, number)), (at + number + 0.5, turn(key, number, Usage(9, 8, 7)))]
            events += [
                (at + number + 0.5, CallsStarted(key, 1, ("f",))),
                (at + number + 0.9, CallsEnded(key, 1, (), 0.4)),
            ]
        events.append((at + 4.0, answered(key, n)))
    model = seen(written(tmp_path, sorted(events, key=lambda pair: pair[0])))
    assert len(orjson.dumps(model["timeline"])) < 60_000


@settings(max_examples=50)
@given(
    steps=st.lists(
        st.tuples(st.floats(min_value=0, max_value=500), st.sampled_from([WAITING, GENERATING, TOOLS, DONE])),
        min_size=1, max_size=60,
    )
)  # fmt: skip
def test_the_time_spent_on_each_thing_is_exact_however_long_the_run(steps: list[tuple[float, int]]) -> None:
    activity, at, doing = Activity(), 0.0, 0
    spent = dict.fromkeys(("waiting", "generating", "tools", "done"), 0.0)
    names = {WAITING: "waiting", GENERATING: "generating", TOOLS: "tools", DONE: "done"}
    for seconds, kind in steps:
        activity.move(at, doing, kind)
        spent[names[kind]] += seconds
        at, doing = at + seconds, kind
    found = activity.as_json(at)
    assert len(found["at"]) <= 400
    assert found["at"] == sorted(found["at"])
    edges, total = 0.0, dict.fromkeys(spent, 0.0)
    for place, middle in enumerate(found["at"][:-1]):
        width = 2 * (middle - edges)
        edges += width
        for name in total:
            total[name] += found[name][place] * width
    for name in spent:
        assert total[name] == pytest.approx(spent[name], abs=0.01 * at + 0.1)
        assert found[name][-1] == (names[doing] == name)


@settings(max_examples=50)
@given(st.lists(st.floats(min_value=0, max_value=1e5), min_size=1, max_size=100))
def test_quantiles_are_right_within_a_few_hundredths(durations: list[float]) -> None:
    spread, ordered = Distribution(), sorted(durations)
    for each in durations:
        spread.add(each)
    for share in (0.5, 0.9, 0.99):
        exact = ordered[max(0, math.ceil(share * len(ordered)) - 1)]
        assert spread.quantile(share) == pytest.approx(exact, rel=0.025, abs=2e-4)
    shown = spread.as_json()
    assert shown is not None
    assert sum(shown["counts"]) == shown["count"] == len(durations)
    assert len(shown["edges"]) == len(shown["counts"]) + 1 <= 34
    assert shown["edges"] == sorted(set(shown["edges"]))
    assert shown["max"] == pytest.approx(ordered[-1], rel=1e-3)


def test_samples_of_a_long_run_are_averaged_and_backends_added_up() -> None:
    series = Series()
    for second in range(0, 100_000, 10):
        series.take(float(second), LoadSampled("a", second % 20, 8, kv_usage=0.25))
        if second >= 99_000:
            series.take(float(second), LoadSampled("b", 3, 4, kv_usage=0.75))
    found = series.as_json()
    assert 300 <= len(found["at"]) <= 600
    assert found["inflight"][0] == pytest.approx(5, abs=0.3)
    assert (found["limit"][0], found["limit"][-1]) == (8, 12)
    assert (found["kv_usage"][-1], found["residents"][0]) == (0.5, None)
