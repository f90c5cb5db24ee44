"""Admission on a KV cache with several tiers. How it does on an engine: tests/benchmarks/test_kv_tiers.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_agent.schedule.kv_tiers import (
    AgentCycle,
    KvTiers,
    RemainingWork,
    admission_order,
    gains_from_overcommit,
    turns_per_second,
)

H200_CYCLE = AgentCycle(turn=1.5, wait=2.0, recompute=0.15, in_flight=18.0)


def test_an_inclusive_host_tier_retains_what_the_larger_tier_holds() -> None:
    assert KvTiers(1000).retained == 1000
    assert KvTiers(1000, 800).retained == 1000
    assert KvTiers(1000, 4000).retained == 4000


def test_an_exclusive_tier_adds_to_the_device() -> None:
    assert KvTiers(1000, 800, is_exclusive=True).retained == 1800
    assert KvTiers(1000, 0, is_exclusive=True).retained == 1000


@given(device=st.integers(1, 10**7), host=st.integers(0, 10**7), more=st.integers(0, 10**7))
def test_more_memory_never_retains_less(device: int, host: int, more: int) -> None:
    assert KvTiers(device, host + more).retained >= KvTiers(device, host).retained
    assert KvTiers(device + more, host).retained >= KvTiers(device, host).retained


@pytest.mark.parametrize(
    ("work", "order"),
    [
        (RemainingWork(40, 32, has_results=True, fits=True), "start_new"),
        (RemainingWork(65, 32, has_results=True, fits=True), "continue_started"),
        (RemainingWork(40, 32, has_results=True, fits=False), "continue_started"),
        (RemainingWork(17, 32, has_results=False, fits=True), "continue_started"),
        (RemainingWork(16, 32, has_results=False, fits=True), "start_new"),
        (RemainingWork(16, 32, has_results=False, fits=False), "continue_started"),
        (RemainingWork(None, 32, has_results=True, fits=True), "continue_started"),
    ],
    ids=[
        "rest fits and is short",
        "rest is long",
        "rest does not fit",
        "no result yet",
        "few before a result",
        "few do not fit",
        "unknown number",
    ],
)
def test_the_last_agents_start_first_only_if_they_fit_and_are_few(work: RemainingWork, order: str) -> None:
    assert admission_order(work) == order


def test_residents_that_fit_are_limited_by_their_tools_or_by_the_engine() -> None:
    assert turns_per_second(7, 36, H200_CYCLE) == pytest.approx(2.0)
    assert turns_per_second(100, 100, H200_CYCLE) == pytest.approx(12.0)


def test_a_busy_engine_gains_nothing_from_agents_that_do_not_fit() -> None:
    assert not gains_from_overcommit(36, 36.0, H200_CYCLE)
    assert not gains_from_overcommit(50, 36.0, H200_CYCLE)


def test_an_engine_that_waits_for_tools_gains_from_agents_that_do_not_fit() -> None:
    waits = AgentCycle(turn=0.9, wait=2.0, recompute=0.15, in_flight=0.6)
    assert gains_from_overcommit(2, 2.0, waits)


def test_an_engine_that_computes_all_contexts_again_takes_no_further_agents() -> None:
    """What it does is the same with 5 or 100 residents, but with 100 results come later."""
    waits = AgentCycle(turn=0.9, wait=2.0, recompute=0.15, in_flight=1.0)
    assert turns_per_second(100, 2.0, waits) > 1.3 * turns_per_second(2, 2.0, waits)
    assert gains_from_overcommit(2, 2.0, waits)
    assert not any(gains_from_overcommit(residents, 2.0, waits) for residents in range(4, 100))


def test_long_contexts_are_not_worth_computing_again() -> None:
    slow = AgentCycle(turn=0.9, wait=2.0, recompute=20.0, in_flight=0.6)
    assert not gains_from_overcommit(2, 2.0, slow)


@given(
    residents=st.integers(1, 200),
    fitting=st.floats(1.0, 200.0),
    turn=st.floats(0.01, 20.0),
    wait=st.floats(0.0, 60.0),
    recompute=st.floats(0.001, 20.0),
    in_flight=st.floats(0.0, 64.0),
)
def test_more_room_never_lowers_the_estimated_throughput(
    residents: int, fitting: float, turn: float, wait: float, recompute: float, in_flight: float
) -> None:
    cycle = AgentCycle(turn, wait, recompute, in_flight)
    assert turns_per_second(residents, fitting + 1, cycle) >= turns_per_second(residents, fitting, cycle)
