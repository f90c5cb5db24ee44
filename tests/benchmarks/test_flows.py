"""The benchmark of flows, on a workload of moments."""

from dataclasses import replace

import pytest
from benchmarks.flows import REPORT_TOKENS, WAYS, Numbers, Rounds, Shape, floor, measure, one_round, targets

from batch_agent.sim import SimConfig

ENGINE = SimConfig(zero_latency=True, max_num_seqs=4)
SHAPE = Shape(6, ("answer", "judge"), ENGINE, tool_share=0.0)
SEARCHING = replace(SHAPE, tool_share=1.0, tool_s=(0.0, 0.001))
LONG = Shape(40, ("answer",), replace(ENGINE, max_model_len=2_048), tool_share=0.0)


@pytest.mark.slow
def test_all_flow_variants_do_the_same_work() -> None:
    taken = {way: measure(run, SHAPE) for way, run in WAYS.items()}
    wanted = sum(SHAPE.answer_size(item, stage) for item in range(6) for stage in SHAPE.stages) + REPORT_TOKENS
    assert {way: numbers["requests"] for way, numbers in taken.items()} == dict.fromkeys(WAYS, 6 * 2 + 1)
    assert {way: numbers["generated_tokens"] for way, numbers in taken.items()} == dict.fromkeys(WAYS, wanted)


@pytest.mark.slow
def test_in_all_flow_variants_first_stage_agents_use_their_tool() -> None:
    taken = {way: measure(run, SEARCHING)["requests"] for way, run in WAYS.items()}
    probe = 1  # ours asks the server once whether it takes tools
    assert taken == {"flow": 6 * 3 + 1 + probe, "stages": 6 * 3 + 1 + probe, "loop": 6 * 3 + 1}


@pytest.mark.slow
def test_in_all_flow_variants_results_beyond_the_window_are_reduced_in_parts() -> None:
    taken = {way: measure(run, LONG)["requests"] for way, run in WAYS.items()}
    assert all(requests >= 40 + 3 for requests in taken.values()), taken


def test_simulated_answer_lengths_have_a_long_tail() -> None:
    sizes = sorted(SHAPE.answer_size(item, "answer") for item in range(1_000))
    assert (sizes[0], sizes[-1]) == (20, 600)
    assert sizes[500] == pytest.approx(90, rel=0.1)


def test_the_lower_bound_is_a_full_engine_or_the_longest_item_plus_the_report() -> None:
    shape = replace(SHAPE, engine=SimConfig(step_base_ms=10, step_us_per_seq=0, prefill_us_per_token=100))
    done = {"vllm:prefix_cache_queries_total": 3e4, "vllm:prefix_cache_hits_total": 1e4}
    few, many = ({**done, "vllm:generation_tokens_total": REPORT_TOKENS + tokens} for tokens in (256, 2_560_000))
    longest = max(sum(shape.answer_size(item, stage) for stage in shape.stages) for item in range(6)) * 0.01
    assert floor(shape, few) == pytest.approx(max(2 + 0.01, longest) + REPORT_TOKENS * 0.01)
    assert floor(shape, many) == pytest.approx(2 + 100 + REPORT_TOKENS * 0.01)


def test_gains_are_ratios_of_medians_and_are_compared_to_their_targets() -> None:
    rounds = Rounds()
    for flow, stages in ((10.0, 12.0), (11.0, 15.4), (12.0, 99.0)):
        rounds.add("deep", "flow", numbers(flow))
        rounds.add("deep", "stages", numbers(stages))
        rounds.add("wide", "flow", numbers(flow))
        rounds.add("wide", "stages", numbers(flow))
    assert rounds.gains()["deep"] == {"stages / flow, wall_s": 1.4, "stages / flow, first_s": 1.4}
    assert [(each["shape"], each["is_met"]) for each in targets(rounds)] == [("wide", False), ("deep", True)]


@pytest.mark.slow
def test_one_round_of_each_flow_shape_gives_numbers() -> None:
    rounds = Rounds()
    one_round(rounds, {"narrow": replace(SHAPE, items=2)})
    assert rounds.taken["narrow"].keys() == WAYS.keys()
    assert targets(rounds) == []


def numbers(seconds: float) -> Numbers:
    return {"wall_s": seconds, "first_s": seconds}
