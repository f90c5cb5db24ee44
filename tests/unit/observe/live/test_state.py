"""What a live view knows of a run, folded from its events."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.event_list import EventList, state_after

from batch_agent import BatchAgent, Flow, Results, Tool
from batch_agent.core.errors import ErrorKind
from batch_agent.core.events import (
    AgentFinished,
    AgentReassigned,
    AgentStarted,
    BudgetReported,
    CallsEnded,
    CallsStarted,
    EndpointChanged,
    Event,
    FlowStarted,
    LoadSampled,
    Notice,
    Paused,
    RequestRetried,
    Resumed,
    RunStarted,
    StageEvent,
    Steered,
    ToolsUsed,
    TurnEnded,
    TurnStarted,
)
from batch_agent.core.requests import NO_USAGE, Usage
from batch_agent.core.results import AgentError, AgentResult, CallRecord, ToolUse
from batch_agent.observe.live.state import LiveStage, LiveState
from batch_agent.observe.run_stats import RateEstimator
from batch_agent.observe.text.summary import summary_lines
from batch_agent.sim import FaultRates, Script, SimConfig, SimServer

STARTED = RunStarted("vllm", "m", 8, 100, prices=(2.0, 0.5, 8.0))


@Tool.define
async def look(key: str) -> str:
    """Look a key up."""
    return f"the value of {key}"


@pytest.fixture(scope="module")
def sim_url() -> Iterator[str]:
    faults = FaultRates(error_500=0.1, retry_after_s=0.01)
    with SimServer(SimConfig(zero_latency=True, faults=faults), Script(parallel_calls=2, keys=3)) as sim:
        yield sim.url


def test_endpoints_that_join_and_leave_are_the_notice_and_are_counted_in_the_summary() -> None:
    changes = [EndpointChanged("vllm://b:1", "joined", 2), EndpointChanged("vllm://a:1", "left", 1)]
    state = state_after(STARTED, *changes)
    assert state.notice == "Endpoint vllm://a:1 left (1 endpoint)."
    assert summary_lines(state, 1.0)[-1] == "Endpoints during the run: 1 joined, 1 left."


def ended(key: str, usage: Usage = NO_USAGE) -> TurnEnded:
    return TurnEnded(key, 1, usage, "stop", 0.0, 1.0, None, 1)


def finished(key: str, *, resumed: bool = False, error: AgentError | None = None) -> AgentFinished:
    return AgentFinished(AgentResult(0, key, error=error), resumed)


def states(state: LiveState, stage: str = "") -> tuple[int, int, int]:
    """Waiting, generating, in tools."""
    agents = state.stages[stage].agents
    return agents.waiting, agents.generating, agents.in_tools


def test_an_agent_waits_generates_calls_tools_and_is_gone() -> None:
    state = state_after(STARTED)
    seen = []
    for event in (
        AgentStarted("a", 0),
        TurnStarted("a", 1),
        RequestRetried("a", ErrorKind.SERVER, "boom", 1.0),
        TurnStarted("a", 1),
        ended("a"),
        CallsStarted("a", 1, ("look",)),
        CallsEnded("a", 1, (), 0.1),
        TurnStarted("a", 2),
        finished("a"),
    ):
        state.emit(event)
        seen.append(states(state))
    wait, generate, tools = (1, 0, 0), (0, 1, 0), (0, 0, 1)
    assert seen == [wait, generate, wait, generate, wait, tools, wait, generate, (0, 0, 0)]


def test_parts_of_a_long_input_are_one_agent_that_generates_if_any_of_them_does() -> None:
    state = state_after(STARTED, AgentStarted("a", 0), TurnStarted("a.part1", 1), TurnStarted("a.part2", 1))
    assert states(state) == (0, 1, 0)
    for event in (ended("a.part1"), CallsStarted("a.part1", 1, ("look",))):
        state.emit(event)
    assert states(state) == (0, 1, 0)
    state.emit(ended("a.part2"))
    assert states(state) == (0, 0, 1)
    state.emit(finished("a"))
    state.emit(TurnStarted("a.part1", 2))
    assert states(state) == (0, 0, 0)


KEYS = st.sampled_from(["a", "b", "b.part1", "b.part2", "c", "c.merge1-1"])
EVENTS = st.lists(
    st.one_of(
        st.builds(AgentStarted, KEYS.map(lambda key: key.partition(".")[0]), st.just(0)),
        st.builds(TurnStarted, KEYS, st.just(1)),
        st.builds(ended, KEYS),
        st.builds(CallsStarted, KEYS, st.just(1), st.just(())),
        st.builds(CallsEnded, KEYS, st.just(1), st.just(()), st.just(0.0)),
        st.builds(RequestRetried, KEYS, st.just(ErrorKind.SERVER), st.just(""), st.just(0.0)),
        st.builds(finished, KEYS.map(lambda key: key.partition(".")[0])),
        st.builds(AgentReassigned, KEYS.map(lambda key: key.partition(".")[0])),
    )
)


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(EVENTS)
def test_every_agent_under_way_is_in_one_state_whatever_comes_in_whatever_order(events: list[Event]) -> None:
    state = state_after(STARTED)
    started: set[str] = set()
    for event in events:
        state.emit(event)
        if isinstance(event, AgentStarted):
            started.add(event.key)
        elif isinstance(event, AgentFinished):
            started.discard(event.result.key)
        elif isinstance(event, AgentReassigned):
            started.discard(event.key)
        waiting, generating, in_tools = states(state)
        assert min(waiting, generating, in_tools) >= 0
        assert waiting + generating + in_tools == len(started) == len(state.stages[""].agents)


async def test_at_every_moment_of_a_real_run_all_agents_are_accounted_for(sim_url: str) -> None:
    log, inputs = EventList(), [{"it": number} for number in range(40)]
    results = await BatchAgent.run(inputs=inputs, events=log, **_options(sim_url))
    state = LiveState()
    for event in log.events:
        state.emit(event)
        stage = state.stages[""]
        if stage.stats.run is not None:
            assert stage.not_started is not None
            assert stage.not_started + sum(states(state)) + stage.stats.done == 40
    _agrees(state.stages[""], results, trial=Usage(32, 0, 1))
    assert state.tools.total.calls == sum(len(result.tool_calls) for result in results) > 0
    assert {tool.name: tool.executed for tool in state.tools.reports} == {"look": state.tools.total.sources["executed"]}
    assert list(state.backends) == ["sim"]
    assert [result for _, result in state.latest] == [e.result for e in log.events if isinstance(e, AgentFinished)][-8:]


async def test_a_flow_has_a_stage_for_each_and_agrees_with_what_comes_out(sim_url: str) -> None:
    state, options = LiveState(), _options(sim_url)
    flow = Flow([{"it": number} for number in range(12)], **{name: options[name] for name in ("backend", "model")})
    outcome = await flow.map("a", "A {it}", tools=[look]).map("b", "B {a}").reduce("all", "Join {n}").run(events=state)
    assert list(state.stages) == list(outcome.stages) == ["a", "b", "all"]
    for name, report in outcome.stages.items():
        _agrees(state.stages[name], report.results)
    assert [stage.total for stage in state.stages.values()] == [12, 12, 1]
    assert state.turn_usage == outcome.usage
    assert [tool.name for tool in state.tools.reports] == ["look"]


def _options(url: str) -> dict[str, Any]:
    return {"task": "Look up {it}.", "tools": [look], "backend": url, "model": "sim", "max_inflight": 8}


def _agrees(stage: LiveStage, results: Results, trial: Usage = NO_USAGE) -> None:
    stats = stage.stats
    assert len(stage.agents) == 0
    assert (stats.done, stats.ok) == (len(results), sum(result.ok for result in results))
    assert stats.turns == sum(result.turns for result in results)
    assert stage.turn_tokens.usage == sum((result.usage for result in results), NO_USAGE)
    assert stats.usage == stage.turn_tokens.usage + trial


def test_tokens_are_counted_turn_by_turn_and_cost_what_the_model_costs() -> None:
    state = state_after(
        STARTED, AgentStarted("a", 0), TurnStarted("a", 1), ended("a", Usage(1_000_000, 600_000, 50_000))
    )
    assert state.turn_usage == Usage(1_000_000, 600_000, 50_000)
    assert state.run_stats.usage == NO_USAGE
    cost = state.cost
    assert cost == pytest.approx(0.4 * 2.0 + 0.6 * 0.5 + 0.05 * 8.0)
    state.emit(BudgetReported(2_000_000, 3.5))  # with what a killed process had set aside
    assert state.cost == cost


def test_what_the_price_of_one_stage_is_not_known_of_has_no_cost() -> None:
    flow = (FlowStarted(("a", "b")), StageEvent("a", STARTED))
    assert state_after(*flow, StageEvent("a", ended("k", Usage(1_000_000)))).cost == 2.0
    assert state_after(*flow, StageEvent("b", RunStarted("vllm", "m", 8, None))).cost is None


def test_tools_are_counted_while_the_run_goes_by_where_their_results_came_from() -> None:
    state = state_after(STARTED, AgentStarted("a", 0))
    calls = (
        CallRecord("look", "", True, 2.0),
        CallRecord("look", "", False, 9.0, "shared"),
        CallRecord("f", "", True, 1),
    )
    state.emit(CallsEnded("a", 1, calls, 2.0))
    state.emit(CallsEnded("a", 2, calls[:1], 4.0))
    count = state.tools.by_tool["look"]
    assert (count.calls, count.failed, count.mean_seconds) == (3, 1, 2.0)
    assert state.tools.total.sources == {"executed": 3, "shared": 1, "cached": 0, "restored": 0}


def test_what_concerns_all_stages_is_kept_in_a_flow_too() -> None:
    state = state_after(
        FlowStarted(("a", "b")), StageEvent("a", STARTED), StageEvent("a", Notice("loading")), Paused(1, "busy")
    )
    assert (state.notice, state.paused) == ("loading", "busy")
    for event in (
        Resumed(),
        ToolsUsed((ToolUse("look", 3),), Usage(5)),
        LoadSampled("vllm", 3, 8),
        LoadSampled("vllm", 4, 8),
    ):
        state.emit(event)
    assert state.paused == ""
    assert state.tools.reports == (ToolUse("look", 3),)
    assert state.tools.summaries == Usage(5)
    assert state.backends == {"vllm": LoadSampled("vllm", 4, 8)}


def test_what_the_user_changes_is_shown_and_in_the_summary() -> None:
    state = state_after(STARTED, Steered("pause", "no", "yes"), Paused(1, "busy"))
    assert (state.paused, state.notice) == ("by batch-agent ctl; busy", "Steered: pause: no -> yes")
    for event in (Resumed(), Steered("inputs", "2", "5", agents=3)):
        state.emit(event)
    assert state.paused == "by batch-agent ctl"
    total = state.stages[""].total
    state.emit(Steered("pause", "yes", "no"))
    assert (state.paused, total) == ("", (STARTED.total or 0) + 3)
    assert summary_lines(state, 1.0)[-1] == "Steered: pause: no -> yes; inputs: 2 -> 5; pause: yes -> no."


def test_only_agents_under_way_and_the_last_results_are_held() -> None:
    state = state_after(STARTED)
    for number in range(1000):
        key = str(number)
        for event in (AgentStarted(key, number), TurnStarted(key, 1), TurnStarted(f"{key}.part1", 1), finished(key)):
            state.emit(event)
    assert len(state.stages[""].agents._agents) == 0
    assert [result.key for _, result in state.latest] == [str(number) for number in range(992, 1000)]


def test_the_pace_is_that_of_the_last_minute_and_says_when_the_rest_will_be_done() -> None:
    state = state_after(STARTED, *(finished(f"old{number}", resumed=True) for number in range(10)))
    state.tick(0.0)
    assert state.seconds_left is None
    for second in range(1, 31):
        state.emit(finished(str(second)))
        state.tick(float(second))
    assert state.stages[""].throughput.rate == pytest.approx(1.0)
    assert state.seconds_left == pytest.approx(60.0)


def test_a_pace_that_changed_is_forgotten_after_a_minute_unless_too_little_happens() -> None:
    growth = RateEstimator()
    assert growth.rate == 0.0
    for second in range(100):
        growth.update(second, second * 10)
    for second in range(100, 300):
        growth.update(second, 1000 + (second - 100) * 2)
    assert growth.rate == pytest.approx(2.0, rel=0.1)
    for second in range(300, 500):
        growth.update(second, 1400)
    assert growth.rate == pytest.approx(1400 / 499)


def test_what_was_fast_an_hour_ago_is_not_fast_now_even_if_it_is_looked_at_rarely() -> None:
    growth = RateEstimator()
    for second in range(60):
        growth.update(second, second * 100)
    for minute in range(1, 40):
        growth.update(60 * minute + 60, 6_000 + minute * 60)
    assert growth.rate == pytest.approx(1.0)
