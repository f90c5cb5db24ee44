"""The benchmark of pools, on work of moments."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.pools import OURS, SLOW, Case, Numbers, Rounds, Work, kept, measure, one_round, targets

from batch_agent.sim import SimConfig

ENGINE = SimConfig(zero_latency=True)
WORK = Work(40, (2, 8))
CASE = Case(WORK, (ENGINE, ENGINE))
STEPS = SimConfig(step_base_ms=10, step_us_per_seq=0, prefill_us_per_token=0, step_ns_per_kv_token=0, max_num_seqs=2)


@pytest.mark.slow
def test_all_pool_variants_do_the_same_work_and_batches_take_few_requests() -> None:
    taken = {way: measure(run, CASE) for way, run in OURS.items()}
    assert {way: numbers["generated_tokens"] for way, numbers in taken.items()} == dict.fromkeys(
        OURS, sum(WORK.sizes())
    )
    assert {way: numbers["failed"] for way, numbers in taken.items()} == dict.fromkeys(OURS, 0)
    assert taken["alone"]["requests"] == 40
    assert taken["lists"]["requests"] == taken["raw_lists"]["requests"] == 4


def test_a_poisoned_prompt_is_reported_as_the_one_that_failed() -> None:
    numbers = measure(OURS["lists"], replace(CASE, work=replace(WORK, poisoned=7)))
    assert numbers["failed"] == 1


def test_the_lower_bound_is_the_time_of_the_engine_with_most_work() -> None:
    three = Work(3, (5, 5))
    assert Case(three, (STEPS,)).engines_s() == pytest.approx(0.1)
    assert Case(three, (STEPS, STEPS)).engines_s() == pytest.approx(0.05)
    assert Case(three, (STEPS, replace(STEPS, slowdown=SLOW.slowdown))).engines_s() == pytest.approx(0.2)


def test_earlier_measurements_are_kept_with_their_commit(tmp_path: Path) -> None:
    path = tmp_path / "pools.json"
    assert kept(path) == {}
    path.write_text(json.dumps({"commit": "abc", "date": "2030-01-01", "vllm": {"rounds": 1}, "benchmark": "pools"}))
    assert kept(path) == {"vllm": {"commit": "abc", "date": "2030-01-01", "rounds": 1}}
    older = {"commit": "old", "date": "2029-01-01", "rounds": 1}
    path.write_text(json.dumps({"commit": "abc", "date": "2030-01-01", "vllm": older}))
    assert kept(path) == {"vllm": older}


def test_targets_compare_medians_and_report_whether_they_are_met() -> None:
    cases = {
        f"{work} x{count}": Case(WORK, (STEPS,) * count)
        for work in ("equal", "varied", "many")
        for count in (1, 2, 3, 4)
    }
    cases |= {f"{work} slow": CASE for work in ("equal", "varied", "many")} | {"poisoned": CASE, "killed": CASE}
    rounds = Rounds()
    for name, case in cases.items():
        for noise in (0.0, 0.1, 9.0):
            rounds.add(name, "lists", numbers(9.9 / len(case.engines) + noise))
            rounds.add(name, "alone", numbers(8.0 / len(case.engines) + noise))
    met = {each["what"]: each["is_met"] for each in targets(rounds, cases)}
    assert met["equal x4: requests"]
    assert met["equal: 2 endpoints against 1"]
    assert not met["equal x4: time of alone, against lists"]
    assert not met["equal: time with a slow one more, against 3 alone"]
    assert rounds.scaling(cases)["equal x4"]["lists"] == pytest.approx(10.0 / (9.9 / 4 + 0.1), abs=1e-3)


@pytest.mark.slow
def test_a_round_measures_each_pool_variant_once() -> None:
    rounds = Rounds()
    one_round(rounds, {"all": replace(CASE, work=Work(2, (1, 1))), "lists": replace(CASE, ways=("lists",))}, OURS)
    assert {name: list(ways) for name, ways in rounds.taken.items()} == {"all": list(OURS), "lists": ["lists"]}
    assert rounds.gains().keys() == {"all"}


def numbers(seconds: float) -> Numbers:
    return {"wall_s": seconds, "requests": 16, "failed": 0}
