"""What is forecast of a run: tokens that can be counted by hand, time on engines whose steps can be, and what a canary
shows of both."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_agent.agent.references import with_references
from batch_agent.core.errors import ErrorKind, SpecError
from batch_agent.core.messages import (
    Assistant,
    Message,
    Placement,
    Reference,
    ToolCall,
    ToolResult,
    ToolResults,
    User,
)
from batch_agent.core.options.price import Price
from batch_agent.core.protocols.backend import Traits
from batch_agent.core.requests import Usage
from batch_agent.core.results import AgentError, AgentResult, Timing
from batch_agent.core.run_reports import PrefixReport, Scheduling
from batch_agent.data.results import Results
from batch_agent.forecasting import ServerSpeeds, behaviour_of, forecast, speeds_of
from batch_agent.forecasting.forecast import AgentProfile, Behaviour, ExpectedTurn, Forecast, prompts
from batch_agent.forecasting.forecast_text import compared_lines, forecast_lines
from batch_agent.forecasting.simulation import SimulationSetup, simulate
from batch_agent.schedule.reference_model import Read
from batch_agent.sim import SimConfig

REPORT = PrefixReport(agents=10, shared_tokens=80, prompt_tokens=100, diverges_at="text", predicted=0.72)
TWO_TURNS: AgentProfile = (ExpectedTurn(10, 30, 1.0), ExpectedTurn(5, 0))
PLACEMENTS: tuple[Placement, Placement] = ("inline", "first")
BY_HAND = SimConfig(step_base_ms=10, step_us_per_seq=0, prefill_us_per_token=1000, step_ns_per_kv_token=0)
"""A step takes 10 ms, and a ms for each prompt token in it but one for each sequence."""


def traits(**changes: Any) -> Traits:
    return replace(Traits("vllm", "m", True, True, True, inflight=4, kv_tokens=100_000), **changes)


def speeds(engine: SimConfig | None = BY_HAND, **changes: Any) -> ServerSpeeds:
    return replace(ServerSpeeds(engine, 0.0, turn_seconds=2.0, seconds_per_token=0.0), **changes)


def once(output: int) -> Behaviour:
    return Behaviour(((ExpectedTurn(output, 0),),))


def test_prompts_grow_by_what_each_turn_adds() -> None:
    assert prompts((ExpectedTurn(1, 30), ExpectedTurn(1, 50), ExpectedTurn(1, 0)), 100) == (100, 130, 180)


def test_tokens_are_counted_from_the_plan_alone() -> None:
    price = Price(input=1.0, cached=0.1, output=2.0)
    told = forecast(REPORT, Behaviour((TWO_TURNS,)), traits(), price=price)
    # Prompts of 100 and 130. Cached: 72 of the first, and of the second all but the 20 that no turn has said.
    assert told.usage == Usage(2300, 10 * (72 + 110), 150)
    assert told.computed == 480
    assert told.cost == pytest.approx(480 + 182 + 300)
    assert told.seconds is None
    assert any("canary" in words for words in told.basis)


WRITES_COST = Price(3e-6, 0.3e-6, 15e-6, 3.75e-6, 6e-6, source="a table, with prices as of 2026-11-01")


@pytest.mark.parametrize(
    ("behaviour", "minutes", "hour"),
    [
        (once(7), 1.0, 0.0),
        (replace(once(7), written_hour=1.0), 0.0, 1.0),
        (replace(once(7), cached=0.5, written=0.25), 0.25, 0.0),
    ],
)
def test_what_the_provider_writes_to_its_cache_is_in_the_cost(
    behaviour: Behaviour, minutes: float, hour: float
) -> None:
    known = forecast(REPORT, behaviour, traits(managed_cache=True), price=WRITES_COST)
    expected = round(minutes * known.computed), round(hour * known.computed)
    assert (known.usage.written, known.usage.written_hour) == expected
    assert known.cost == pytest.approx(WRITES_COST.of(known.usage))
    lines = "\n".join(forecast_lines(known))
    assert f"{known.usage.all_written:,} written to the provider's cache" in lines
    assert "(a table, with prices as of 2026-11-01)" in lines


def test_writes_that_cost_no_more_than_input_are_not_expected() -> None:
    known = forecast(REPORT, once(7), traits(managed_cache=True), price=Price(3e-6, 3e-7, 15e-6))
    assert known.usage.all_written == 0


def test_profiles_that_vary_are_counted_as_measured() -> None:
    told = forecast(REPORT, Behaviour((TWO_TURNS, (ExpectedTurn(7, 0),))), traits())
    assert told.usage.input == 5 * 230 + 5 * 100
    assert told.usage.output == 5 * 15 + 5 * 7


def test_the_time_of_one_agent_is_that_of_its_steps() -> None:
    report = replace(REPORT, agents=1, shared_tokens=0, prompt_tokens=11, predicted=0.0)
    told = forecast(report, once(5), traits(), speeds=speeds())
    assert told.seconds == pytest.approx(0.010 + 10 * 0.001 + 4 * 0.010)


def test_tool_waits_and_overheads_take_their_time() -> None:
    report = replace(REPORT, agents=1, shared_tokens=0, prompt_tokens=11, predicted=0.0)
    profile = (ExpectedTurn(1, 2, 3.0), ExpectedTurn(1, 0))
    told = forecast(report, Behaviour((profile,)), traits(), speeds=speeds(overhead=0.5))
    # 11 and 13 tokens are less than a block, so that the second prompt is computed whole.
    assert told.seconds == pytest.approx(0.5 + 0.020 + 3.0 + 0.5 + 0.022)


def test_a_service_answers_in_rounds_as_large_as_may_be_in_flight() -> None:
    behaviour = replace(once(5), source="canary of 2", cached=0.5)
    told = forecast(REPORT, behaviour, traits(managed_cache=True), speeds=speeds(None), max_inflight=5)
    assert told.seconds == pytest.approx(2 * 2.0)
    assert told.inflight == 5
    assert told.usage.cached == 10 * 100 * 0.5 * 0.9  # the first agent finds nothing


def test_residents_are_counted_by_the_kv_ledger() -> None:
    profile = (ExpectedTurn(10, 70), ExpectedTurn(30, 0))
    report = replace(REPORT, shared_tokens=100, prompt_tokens=200)
    # Nine tenths of 1,000, less the 100 that are shared, by 100 own and 100 grown.
    assert forecast(report, Behaviour((profile,)), traits(kv_tokens=1000)).residents == 4
    assert forecast(report, Behaviour((profile,)), traits(kv_tokens=100_000)).residents == 10
    assert forecast(report, Behaviour((profile,)), traits(kv_tokens=None)).residents is None
    assert forecast(report, once(5), traits(kv_tokens=1000)).residents is None, "nobody comes back"


def test_agents_beyond_the_simulated_ones_finish_at_the_same_rate() -> None:
    few, many, more = (
        forecast(replace(REPORT, agents=agents), once(5), traits(), speeds=speeds(), max_inflight=4).seconds
        for agents in (800, 1600, 2400)
    )
    assert few is not None
    assert many is not None
    assert more is not None
    assert more - many == pytest.approx(many - few)
    assert many / few == pytest.approx(2, rel=0.02)


def test_unknown_memory_is_stated_in_the_basis() -> None:
    def basis(**changes: Any) -> str:
        return " ".join(forecast(REPORT, once(5), traits(**changes), speeds=speeds()).basis)

    assert "KV cache" not in basis(kv_running_tokens=100_000)
    assert "large enough" in basis(kv_tokens=None)
    assert "slower tier" in basis(kv_tokens=None, kv_running_tokens=50_000)


def test_a_context_larger_than_the_cache_ends_too() -> None:
    report = replace(REPORT, agents=3, shared_tokens=0, prompt_tokens=5_000, predicted=0.0)
    told = forecast(report, Behaviour((TWO_TURNS,)), traits(kv_tokens=1_000), speeds=speeds())
    assert told.residents == 1
    assert told.seconds is not None


def test_slots_of_the_server_are_all_that_runs_at_once() -> None:
    told = forecast(REPORT, once(5), traits(inflight=2, fixed_inflight=True), speeds=speeds())
    assert told.inflight == 2


def test_an_unknown_number_of_inputs_is_rejected() -> None:
    report = replace(REPORT, agents=None, predicted=None)
    with pytest.raises(SpecError, match="The number of inputs is unknown"):
        forecast(report, once(5), traits())
    assert forecast(report, once(5), traits(), agents=5).usage.input == 500


def test_a_simulation_is_deterministic_also_inside_a_running_loop() -> None:
    def told() -> Forecast:
        return forecast(REPORT, Behaviour((TWO_TURNS,)), traits(), speeds=speeds())

    async def main() -> Forecast:
        return await asyncio.to_thread(told)

    assert asyncio.run(main()) == told()


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    agents=st.integers(1, 24),
    more=st.integers(1, 12),
    inflight=st.integers(1, 8),
    turns=st.integers(1, 3),
    tool_seconds=st.floats(0.0, 0.3),
)
def test_more_agents_never_take_less_time(
    agents: int, more: int, inflight: int, turns: int, tool_seconds: float
) -> None:
    profile = (*[ExpectedTurn(5, 20, tool_seconds)] * (turns - 1), ExpectedTurn(8, 0))
    took = [
        forecast(
            replace(REPORT, agents=count), Behaviour((profile,)), traits(), speeds=speeds(), max_inflight=inflight
        ).seconds
        for count in (agents, agents + more)
    ]
    assert took[0] is not None
    assert took[1] is not None
    assert took[1] >= took[0] * (1 - 1e-9)


@settings(max_examples=25, deadline=None)
@given(
    agents=st.integers(1, 24),
    inflight=st.integers(1, 8),
    prefill=st.floats(0.0, 2000.0),
    faster=st.floats(0.0, 1.0),
)
def test_quicker_prompts_never_take_longer(agents: int, inflight: int, prefill: float, faster: float) -> None:
    took = [
        forecast(
            replace(REPORT, agents=agents),
            once(8),
            traits(),
            speeds=speeds(replace(BY_HAND, prefill_us_per_token=each)),
            max_inflight=inflight,
        ).seconds
        for each in (prefill, prefill * faster)
    ]
    assert took[0] is not None
    assert took[1] is not None
    assert took[1] <= took[0] * (1 + 1e-9)


def conversation(answer: str = "a" * 40) -> tuple[Message, ...]:
    """A task of 100 tokens, of which 25 are shared; a call of 10 and a result of 20; an answer of 10."""
    call = ToolCall("1", "look", "x" * 16)
    return (
        User("t" * 400, 100),
        Assistant("s" * 20, (call,)),
        ToolResults((ToolResult(call, "r" * 60, seconds=0.5), ToolResult(call, "r" * 20, seconds=0.2))),
        Assistant(answer),
    )


def result(**changes: Any) -> AgentResult:
    made = AgentResult(0, "k", usage=Usage(470, 300, 60), turns=2, transcript=conversation())
    return replace(made, **changes)


def test_a_canary_shows_turns_tokens_and_tools() -> None:
    report = replace(REPORT, shared_tokens=145, prompt_tokens=220)  # 145: of which 25 in the task
    behaviour = behaviour_of([[result()]], report, lead=100)
    # Estimated: 2 x (120 + 100) and 30 in the second prompt, which is what was counted.
    assert behaviour is not None
    assert behaviour.scale == 1.0
    assert behaviour.profiles == ((ExpectedTurn(30, 30, 0.5), ExpectedTurn(30, 10)),)
    assert behaviour.source == "canary of 1"
    assert (behaviour.turns, behaviour.output, behaviour.tool_seconds, behaviour.grown) == (2, 60, 0.5, 60)


def test_the_servers_token_count_scales_the_plans_estimate() -> None:
    report = replace(REPORT, shared_tokens=145, prompt_tokens=220)
    behaviour = behaviour_of([[result(usage=Usage(940, 0, 60))]], report, lead=100)
    assert behaviour is not None
    assert behaviour.scale == 2.0
    assert behaviour.profiles[0][0].added == 60
    told = forecast(report, behaviour, traits())
    assert told.usage == Usage(10 * 940, 0, 600), "a server that says nothing of its cache will not"


def reading(name: str, *, placed: bool = False) -> tuple[Message, ...]:
    """A task of 100 characters that begins with 20 shared ones, a call, and a result of 4,000 characters."""
    call = ToolCall("1", "look", f"{name:>16}")
    reference = Reference(f"look({name})", 0) if placed else None
    results = ToolResults((ToolResult(call, name * 4_000, reference=reference),))
    return with_references((User("t" * 100, 20), Assistant("", (call,)), results, Assistant("a")), 20)


def shared_by(*names: str, placement: Placement = "inline", placed: bool = False) -> Behaviour:
    results = [result(transcript=reading(name, placed=placed), usage=Usage()) for name in names]
    found = behaviour_of([results], REPORT, placements={"look": placement})
    assert found is not None
    return replace(found, counts_cached=True)


def test_a_canary_shows_which_results_its_agents_share() -> None:
    one, other, alone = (profile[0].reads for profile in shared_by("x", "x", "y").profiles)
    assert one == other == (Read("look " + f"{'x':>16}", 1_000.0, "inline"),)
    assert alone == (Read("", 1_000.0, "inline"),), "nobody else read it"
    assert not shared_by("x", "x").places_results
    assert shared_by("x", "x", placement="auto").places_results


def test_a_canary_whose_results_were_placed_first_shows_the_same_turns() -> None:
    inline, first = shared_by("x", "x", placement="first"), shared_by("x", "x", placement="first", placed=True)
    before, after = inline.profiles[0][0], first.profiles[0][0]
    assert after.added == pytest.approx(before.added, rel=0.05)
    assert [read.size for read in after.reads] == pytest.approx([read.size for read in before.reads], rel=0.05)
    assert [read.heading for read in after.reads] == [read.heading for read in before.reads]


def test_results_that_agents_share_are_computed_once_if_they_are_placed_first() -> None:
    report = replace(REPORT, agents=40)
    inline, first = (
        forecast(report, shared_by("x", "x", placement=each), traits(), speeds=speeds()) for each in PLACEMENTS
    )
    assert inline.usage.input == first.usage.input
    assert inline.computed > 40 * 1_000
    assert first.computed < 0.2 * inline.computed
    assert first.seconds is not None
    assert inline.seconds is not None
    assert first.seconds < 0.5 * inline.seconds
    without_time = forecast(report, replace(shared_by("x", "x", placement="first"), cached=None), traits())
    assert without_time.computed == pytest.approx(first.computed, rel=0.2)


def test_more_agents_are_resident_if_they_share_what_they_read() -> None:
    small = traits(kv_tokens=8_000)
    inline, first = (
        forecast(replace(REPORT, agents=40), shared_by("x", "x", placement=each), small).residents
        for each in PLACEMENTS
    )
    assert inline is not None
    assert first is not None
    assert inline < 10
    assert first > 2 * inline


def test_a_forecast_says_what_placing_results_first_saves() -> None:
    report = replace(REPORT, agents=40)
    advice = "\n".join(forecast_lines(forecast(report, shared_by("x", "x"), traits())))
    assert "results  1 tool result is read by 40 agents; placed first, " in advice
    assert 'fewer prompt tokens are computed: set shared_results="auto"' in advice
    placed = "\n".join(forecast_lines(forecast(report, shared_by("x", "x", placement="first"), traits())))
    assert "results  1 tool result placed first for 40 agents: " in placed
    alone = "\n".join(forecast_lines(forecast(report, shared_by("x", "y"), traits())))
    assert "results  " not in alone
    none = "\n".join(forecast_lines(forecast(report, shared_by("x", "y", placement="auto"), traits())))
    assert "results  none placed first: that would save nothing" in none


def test_a_repaired_answer_counts_as_a_turn() -> None:
    behaviour = behaviour_of([[result(turns=3, usage=Usage(700, 0, 60))]], REPORT)
    assert behaviour is not None
    [profile] = behaviour.profiles
    assert len(profile) == 3
    assert [turn.output for turn in profile] == [20, 20, 20]


def test_a_canary_without_an_answer_shows_nothing() -> None:
    failed = result(error=AgentError(ErrorKind.MAX_TURNS, "too long"))
    assert behaviour_of([[failed]], REPORT) is None
    behaviour = behaviour_of([[failed], [result()]], REPORT)
    assert behaviour is not None
    assert len(behaviour.profiles) == 1
    assert behaviour.source == "canary of 2 (1 failed)"
    assert speeds_of([[failed]], behaviour, REPORT) is None


def test_few_answers_of_different_lengths_are_reported_as_uncertain() -> None:
    behaviour = Behaviour(((ExpectedTurn(10, 0),), (ExpectedTurn(100, 0),)), "canary of 2", cached=0.0)
    assert any("uncertain by" in words for words in forecast(REPORT, behaviour, traits()).basis)


def test_a_canary_finds_the_engine_that_it_ran_on() -> None:
    truth = SimConfig(step_base_ms=8, step_us_per_seq=200, prefill_us_per_token=50, step_ns_per_kv_token=100)
    report = replace(REPORT, shared_tokens=1000, prompt_tokens=2000)
    step = truth.step_seconds(1, 0, 2050)
    alone = said(2000, 0, 101, [step + 1999 * 50e-6], 100 * step)
    crowd: tuple[AgentProfile, ...] = ((ExpectedTurn(101, 0),),) * 8
    decoding = simulate(crowd, SimulationSetup(1000, 2000, 8, True, is_warm=True), truth).decoding / 8
    together = [said(2000, 992, 101, [1.0], decoding) for _ in range(8)]
    behaviour = Behaviour(((ExpectedTurn(101, 0),),) * 9, "canary of 9", cached=0.4)
    found = speeds_of([[alone], together], behaviour, report)
    assert found is not None
    assert found.engine is not None
    assert found.engine.prefill_us_per_token == pytest.approx(50, rel=0.02)
    for sequences in (1, 8, 64):
        expected = truth.step_seconds(sequences, 0, 2000 * sequences)
        assert found.engine.step_seconds(sequences, 0, 2000 * sequences) == pytest.approx(expected, rel=0.05)


def said(prompt: int, cached: int, output: int, ttft: list[float | None], decoding: float) -> AgentResult:
    timing = Timing(0.0, tuple(ttft), sum(second or 0.0 for second in ttft) + decoding)
    return AgentResult(0, "k", usage=Usage(prompt, cached, output), turns=len(ttft), timing=timing)


def test_later_turns_separate_the_overhead_of_a_request_from_its_prompt() -> None:
    profile = (ExpectedTurn(11, 11), ExpectedTurn(11, 0))
    # 0.1 s beside the engine; 1,000 tokens of 1 ms in the first turn, half a block of them in the second.
    ttft: list[float | None] = [0.1 + 0.01 + 1.0, 0.1 + 0.01 + 0.008]
    alone = said(2011, 1003, 22, ttft, 20 * 0.01)
    found = speeds_of([[alone]], Behaviour((profile,), cached=0.0), replace(REPORT, prompt_tokens=1000))
    assert found is not None
    assert found.engine is not None
    assert found.overhead == pytest.approx(0.1, abs=0.002)
    assert found.engine.prefill_us_per_token == pytest.approx(1000, rel=0.01)
    assert any("typical" in words for words in found.basis), "nobody ran in company"


def test_without_a_cache_every_turn_times_its_prompt() -> None:
    alone = said(3000, 0, 22, [0.01 + 1.0, 0.01 + 2.0], 20 * 0.01)
    profile = (ExpectedTurn(11, 1000), ExpectedTurn(11, 0))
    found = speeds_of([[alone]], Behaviour((profile,), counts_cached=False, cached=0.0), REPORT)
    assert found is not None
    assert found.engine is not None
    assert found.engine.prefill_us_per_token == pytest.approx(1000)


def test_prompts_too_short_to_time_are_taken_as_typical() -> None:
    found = speeds_of([[said(100, 0, 11, [0.04], 10 * 0.02)]], once(11), REPORT)
    assert found is not None
    assert found.engine is not None
    assert found.engine.prefill_us_per_token == pytest.approx(100)
    assert found.overhead == pytest.approx(0.04 - 0.02 - 100 * 100e-6)


def test_answers_too_short_to_time_give_no_step_time() -> None:
    found = speeds_of([[said(100, 0, 1, [0.04], 0.0)]], once(1), REPORT)
    assert found is not None
    assert found.engine is None


def test_without_streaming_only_whole_turns_are_timed() -> None:
    alone = replace(said(100, 0, 10, [None, None], 0.0), timing=Timing(0.5, (None, None), 4.5))
    found = speeds_of([[alone]], once(5), REPORT)
    assert found is not None
    assert (found.engine, found.turn_seconds) == (None, 2.0)
    told = forecast(REPORT, once(5), traits(), speeds=found)
    assert told.seconds is None
    assert any("streamed" in words for words in told.basis)


def test_a_forecast_is_compared_with_the_run() -> None:
    told = replace(forecast(REPORT, Behaviour((TWO_TURNS,)), traits(kv_tokens=400)), seconds=12.0)
    results = Results([result(usage=Usage(230, 100, 30))] * 10, Scheduling(max_residents=2))
    compared = told.compare(results, 10.0)
    assert compared.row("prompt tokens").ratio == 1.0
    assert compared.row("output tokens").ratio == 0.5
    assert compared.row("seconds").ratio == 1.2
    assert compared.row("residents").fact == 2
    assert compared.row("cost").ratio is None
    assert not any(line.startswith("cost") for line in compared_lines(compared))
    with pytest.raises(KeyError):
        compared.row("weather")


def test_a_forecast_is_printed_as_text() -> None:
    told = "\n".join(forecast_lines(forecast(REPORT, once(5), traits(), speeds=speeds(), price=Price(1, 1, 1))))
    assert "10 of 1.0 turns" in told
    assert "72% of first prompts shared" in told
    assert "1,000 tokens" in told


def test_without_a_canary_tool_calls_are_assumed() -> None:
    assert Behaviour.assumed(has_tools=False, max_tokens=50).profiles == ((ExpectedTurn(50, 0),),)
    assert Behaviour.assumed(has_tools=True).turns == 3
    assert Behaviour.assumed(has_tools=True, max_turns=2).turns == 2
