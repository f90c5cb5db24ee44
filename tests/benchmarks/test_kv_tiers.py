"""The admission controller on a simulated engine with two tiers, beside a gather loop and the best schedule of starts.
The engine runs in virtual time, so every number is exact."""

import itertools
from dataclasses import replace

import pytest
from benchmarks.kv_tiers import MEASURED, SERVERS, GatherLoop, Ours, best_schedule, host_blocks, simulate
from benchmarks.sim_vs_vllm import H200, H200_WORK, Workload

SMALL = Workload(
    agents=4, turns=3, first_prompt=8_014, shared_tokens=2_000, answer_tokens=150, result_tokens=150, tool_s=(1.0, 3.0)
)


@pytest.mark.slow
@pytest.mark.parametrize("tier", MEASURED)
def test_the_simulated_tiers_take_a_gather_loop_as_long_as_the_h200_did(tier: str) -> None:
    seconds = simulate(GatherLoop, SERVERS[tier], H200_WORK).numbers()["wall_s"]
    assert seconds == pytest.approx(MEASURED[tier]["gather_loop"], rel=0.05)


@pytest.mark.slow
def test_more_host_memory_never_makes_a_run_slower() -> None:
    """Of a tier that is larger than the device: a smaller one only costs the copies to it, which the client cannot
    prevent."""
    walls = [
        simulate(Ours, replace(H200, host_blocks=host_blocks(gib)), H200_WORK).numbers()["wall_s"]
        for gib in (0, 16, 32, 48, 64)
    ]
    for less, more in itertools.pairwise(walls):
        assert more <= 1.03 * less, walls


@pytest.mark.slow
def test_a_tier_that_holds_everything_costs_nothing_and_results_come_early() -> None:
    loop, ours = (simulate(kind, SERVERS["64 GiB"], H200_WORK).numbers() for kind in (GatherLoop, Ours))
    assert ours["wall_s"] <= 1.05 * loop["wall_s"]
    assert ours["first_result_s"] <= 0.6 * loop["first_result_s"]
    assert ours["preemptions"] == 0


@pytest.mark.slow
def test_a_tier_that_is_too_small_is_not_thrashed() -> None:
    loop, ours = (simulate(kind, SERVERS["16 GiB"], H200_WORK).numbers() for kind in (GatherLoop, Ours))
    assert loop["later_turns_cached"] < 0.3
    assert ours["later_turns_cached"] > 0.9
    assert ours["wall_s"] <= 0.7 * loop["wall_s"]


@pytest.mark.slow
def test_an_exclusive_tier_of_the_size_of_the_device_is_worth_as_much_as_an_inclusive_one_of_twice_its_size() -> None:
    exclusive, none = (simulate(Ours, SERVERS[tier], H200_WORK).numbers() for tier in ("16 GiB, exclusive", "none"))
    inclusive = simulate(Ours, SERVERS["32 GiB"], H200_WORK).numbers()
    assert exclusive["cache_misses"] == 0
    assert exclusive["wall_s"] <= 0.8 * none["wall_s"]
    assert exclusive["wall_s"] <= 1.03 * inclusive["wall_s"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "host"), [(1_000, 0), (1_450, 0), (1_000, 1_500), (1_000, 2_600), (3_000, 0)], ids=str
)
def test_ours_is_near_the_best_schedule_of_few_agents(device: int, host: int) -> None:
    """The best schedule knows every tool's time beforehand."""
    config = replace(H200, num_blocks=device, host_blocks=host)
    assert simulate(Ours, config, SMALL).ended_at[-1] <= 1.3 * best_schedule(config, SMALL)


@pytest.mark.slow
def test_an_engine_that_is_busy_with_lost_contexts_is_not_given_all_agents() -> None:
    """A context and a half fit. More agents keep the engine busy during tool calls, but all of them at once would only
    delay the results."""
    config, work = replace(H200, num_blocks=1_000), replace(SMALL, agents=40, turns=4)
    loop, ours = (simulate(kind, config, work).numbers() for kind in (GatherLoop, Ours))
    assert 3 <= ours["max_residents"] <= 12
    assert ours["wall_s"] <= 1.05 * loop["wall_s"]
    assert ours["mean_result_s"] <= 0.8 * loop["mean_result_s"]
