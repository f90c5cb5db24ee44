"""Thresholds of cascades: the bound is exact, and regions that pass meet the target as often as promised."""

import math
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_agent.scores.cascade import certify, propose, upper_bound

Rows = tuple[list[bool], list[float]]


def missed_chance(size: int, marked: int, drawn: int, delta: float) -> float:
    """The exact chance that the bound is below the truth."""
    total = math.comb(size, drawn)
    return sum(
        math.comb(marked, found) * math.comb(size - marked, drawn - found) / total
        for found in range(max(0, drawn - size + marked), min(marked, drawn) + 1)
        if upper_bound(size, drawn, found, delta) < marked
    )


@settings(max_examples=60)
@given(st.data())
def test_the_bound_is_below_the_truth_with_a_chance_of_at_most_delta(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 60))
    marked, drawn = data.draw(st.integers(0, size)), data.draw(st.integers(0, size))
    delta = data.draw(st.sampled_from([0.01, 0.025, 0.05, 0.2]))
    assert missed_chance(size, marked, drawn, delta) <= delta + 1e-9


@pytest.mark.parametrize(
    ("size", "drawn", "found", "bound"), [(100, 0, 0, 100), (100, 100, 7, 7), (1000, 100, 0, 28), (10**6, 59, 0, 49506)]
)
def test_a_bound_without_findings_is_the_rule_of_three(size: int, drawn: int, found: int, bound: int) -> None:
    assert upper_bound(size, drawn, found, 0.05) == bound


def test_regions_never_separate_equal_scores_and_never_hold_known_rows() -> None:
    scores = [float(row % 4) for row in range(400)]
    known = {row: row % 4 > 1 for row in range(40)}
    regions = propose(scores, known, labels=160, target=0.9, delta=0.1)
    inside = {*regions.low.rows, *regions.high.rows}
    assert inside
    assert not inside & set(known)
    for region in (regions.low, regions.high):
        values = {scores[row] for row in region.rows}
        assert all(row in region.rows for row in range(40, 400) if scores[row] in values)


def informative(rng: Random, count: int) -> Rows:
    truth = [rng.random() < 0.5 for _ in range(count)]
    return truth, [rng.betavariate(8, 2) if label else rng.betavariate(2, 8) for label in truth]


def treacherous(rng: Random, count: int) -> Rows:
    """The score is right for most rows, and certain and wrong for about as many as the target permits."""
    truth = [rng.random() < 0.5 for _ in range(count)]
    return truth, [rng.random() * 0.2 + 0.8 * (label != (rng.random() < 0.05)) for label in truth]


def useless(rng: Random, count: int) -> Rows:
    return [rng.random() < 0.5 for _ in range(count)], [rng.random() for _ in range(count)]


def inverted(rng: Random, count: int) -> Rows:
    truth, scores = informative(rng, count)
    return truth, [-score for score in scores]


def measure(rows: Callable[[Random, int], Rows], count: int, labels: int, seed: int) -> tuple[float, float, int]:
    """Precision, recall and calls of the strong model, for a target of 0.95 and a delta of 0.05."""
    rng = Random(seed)
    truth, scores = rows(rng, count)
    known = {row: truth[row] for row in rng.sample(range(count), labels // 5)}
    for _ in range(2):
        regions = propose(scores, known, labels=labels - labels // 5, target=0.95, delta=0.05)
        inside = {*regions.low.rows, *regions.high.rows}
        outside = {row: truth[row] for row in range(count) if row not in inside}
        known = known | outside
    low, high = (rng.sample(region.rows, region.audit) for region in (regions.low, regions.high))
    passed = certify(
        regions, sum(truth[row] for row in low), sum(not truth[row] for row in high),
        accepted=sum(outside.values()), target=0.95, delta=0.05,
    )  # fmt: skip
    rejected = set(regions.low.rows) - set(low) if passed.low else set()
    kept = set(regions.high.rows) - set(high) if passed.high else set()
    missed, wrong = sum(truth[row] for row in rejected), sum(not truth[row] for row in kept)
    right = sum(truth) - missed
    return right / (right + wrong), right / sum(truth), count - len(rejected) - len(kept)


@pytest.mark.slow
def test_95_of_100_cascades_meet_the_target_with_a_third_of_the_calls() -> None:
    measured = [measure(informative, 2000, 200, seed) for seed in range(100)]
    assert sum(precision >= 0.95 and recall >= 0.95 for precision, recall, _ in measured) >= 95
    assert sum(calls for *_, calls in measured) <= 100 * 2000 / 3


@pytest.mark.slow
def test_95_of_100_cascades_meet_the_target_if_the_score_is_certain_and_wrong() -> None:
    measured = [measure(treacherous, 300, 100, seed) for seed in range(100)]
    assert sum(precision >= 0.95 and recall >= 0.95 for precision, recall, _ in measured) >= 95


@pytest.mark.parametrize("rows", [useless, inverted])
def test_with_a_score_that_says_nothing_the_strong_model_decides_nearly_everything(
    rows: Callable[[Random, int], Rows],
) -> None:
    measured = [measure(rows, 500, 100, seed) for seed in range(10)]
    assert all(precision >= 0.95 and recall >= 0.95 for precision, recall, _ in measured)
    assert sum(calls for *_, calls in measured) >= 0.9 * 10 * 500


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "count", "labels"), [(informative, 5000, 200), (treacherous, 1000, 200)])
def test_95_of_100_large_cascades_meet_the_target(rows: Callable[[Random, int], Rows], count: int, labels: int) -> None:
    measured = [measure(rows, count, labels, seed) for seed in range(1000, 1100)]
    assert sum(precision >= 0.95 and recall >= 0.95 for precision, recall, _ in measured) >= 95
