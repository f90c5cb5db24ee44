"""The benchmark of shared results, with few agents and short documents."""

from dataclasses import replace
from itertools import islice

import pytest
from benchmarks.shared_results import (
    READS,
    ROOMY,
    TIGHT,
    WAYS,
    Numbers,
    Work,
    alone,
    call_order,
    gather,
    half_alone,
    measure,
    ours,
    targets,
    topics,
    zipf,
)

from batch_agent.tools.reference_order import ReferenceOrder

WORK = Work(topics, agents=64, shared=64, own=64, document=512, answer=32, tool_s=(0.5, 1.5))


def run(way: str, work: Work = WORK) -> Numbers:
    return measure(WAYS[way], work, ROOMY)


def test_agents_of_a_topic_read_the_same_documents_in_the_same_order() -> None:
    assert [topics(3, turn) for turn in range(READS)] == [topics(19, turn) for turn in range(READS)]


def test_no_agent_reads_a_document_twice() -> None:
    for reads in (topics, zipf, alone, half_alone):
        for agent in range(40):
            assert len({reads(agent, turn) for turn in range(READS)}) == READS


@pytest.mark.slow
def test_documents_that_are_placed_first_are_computed_once() -> None:
    first, by_hand, inline, loop = (run(way) for way in ("first", "gather_first", "inline", "gather_inline"))
    assert inline["computed_tokens"] == loop["computed_tokens"]
    assert first["computed_tokens"] < 0.7 * inline["computed_tokens"]
    assert first["computed_tokens"] < 1.05 * by_hand["computed_tokens"]
    assert first["wall_s"] < inline["wall_s"]


@pytest.mark.slow
def test_auto_computes_about_as_little_as_the_better_of_both() -> None:
    for work in (WORK, replace(WORK, reads=half_alone), replace(WORK, reads=zipf, own=256)):
        least = min(run("first", work)["computed_tokens"], run("inline", work)["computed_tokens"])
        assert run("auto", work)["computed_tokens"] <= 1.05 * least


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"own": 2_000}, {"reads": alone}, {"document": 50}])
def test_auto_leaves_results_inline_where_nothing_is_gained(change: Numbers) -> None:
    work = replace(WORK, **change)
    assert run("auto", work)["computed_tokens"] == run("inline", work)["computed_tokens"]


def test_a_run_takes_the_same_virtual_time_whenever_it_is_measured() -> None:
    one, other = (measure(ours(shared_results="auto"), WORK, TIGHT) for _ in range(2))
    assert {**one, "cpu_s": 0} == {**other, "cpu_s": 0}


def test_call_order_ends_with_its_block() -> None:
    kept = ReferenceOrder.reference
    with call_order():
        assert ReferenceOrder.reference is not kept
    assert ReferenceOrder.reference is kept


def test_agents_that_each_fetch_a_document_wait_longer() -> None:
    slow = replace(WORK, tool_s=(1.0, 1.0))
    once, each = (measure(gather(), replace(slow, once=once), ROOMY)["wall_s"] for once in (True, False))
    assert once < each


def test_targets_are_compared_with_what_was_measured() -> None:
    shared = {case: {"first": {"wall_s": 15.0}} for case in ("262k topics", "everything fits topics")}
    shared |= {case: {"first": {"wall_s": 30.0}} for case in ("262k zipf", "everything fits zipf")}
    nothing = {"alone": {"inline": {"wall_s": 10.0}, "auto": {"wall_s": 10.3}}}
    found = targets(shared, nothing)
    assert [each["is_met"] for each in islice(found, 4)] == [True, False, True, False]
    assert (found[-1]["found"], found[-1]["is_met"]) == (1.03, False)
