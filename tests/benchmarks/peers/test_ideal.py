"""The wall time of an ideal client."""

from dataclasses import replace

import pytest
from benchmarks.peers.ideal import ideal_s, schedule_s
from benchmarks.peers.workloads import MODEL_S, WORKLOADS


def test_agents_that_all_have_a_slot_take_two_turns_and_a_tool() -> None:
    assert ideal_s(WORKLOADS["one_key_50"]) == pytest.approx(2 * MODEL_S + 0.2)


def test_with_few_slots_the_turns_fill_them_one_after_the_other() -> None:
    busy = replace(WORKLOADS["ten_keys_64"], agents=640, tool_s=0.0)
    assert ideal_s(busy) == pytest.approx(2 * 640 / 64 * MODEL_S)


def test_agents_that_share_a_slow_tool_call_wait_for_it_once() -> None:
    workload = replace(WORKLOADS["slow_tool"], agents=32, keys=10)
    assert ideal_s(workload) == pytest.approx(2 * MODEL_S + 0.8)


def test_a_cached_tool_call_costs_nothing() -> None:
    workload = replace(WORKLOADS["one_key_50"], agents=2, inflight=1, tool_s=MODEL_S)
    assert schedule_s(workload, returning_first=False) == pytest.approx(4 * MODEL_S)


def test_no_schedule_is_shorter_than_the_work_of_its_slots_takes() -> None:
    for workload in WORKLOADS.values():
        found = ideal_s(workload)
        if found is not None and workload.tool_s is not None:
            assert found >= workload.turns * workload.agents * workload.model_s / workload.inflight - 1e-9


def test_a_server_without_latency_has_no_ideal() -> None:
    assert ideal_s(WORKLOADS["single_2000"]) is None


def test_a_stream_takes_as_long_as_its_tokens() -> None:
    assert ideal_s(WORKLOADS["streaming"]) == pytest.approx(256 / 64 * 200 * 0.005)


def test_refused_requests_do_not_lengthen_a_schedule_that_has_other_work() -> None:
    faults = WORKLOADS["faults"]
    assert ideal_s(faults) == pytest.approx(-(-faults.agents // faults.inflight) * MODEL_S)
