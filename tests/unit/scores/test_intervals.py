"""Intervals and tests against values from tables and from R."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_agent.scores.intervals import mcnemar, paired_interval, t_interval, t_quantile, t_test, wilson


@pytest.mark.parametrize(
    ("freedom", "known"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (5, 2.5706), (10, 2.2281), (30, 2.0423), (120, 1.9799), (10_000, 1.9602)],
)
def test_quantiles_of_t_are_those_of_the_tables(freedom: int, known: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(known, abs=5e-5)


@pytest.mark.parametrize(
    ("right", "total", "low", "high"),
    [(0, 10, 0.0, 0.27753), (10, 10, 0.72247, 1.0), (81, 263, 0.25528, 0.36618), (15, 148, 0.06236, 0.16053),
     (1, 29, 0.00611, 0.17176)],
)  # fmt: skip
def test_wilson_intervals_are_those_of_newcombe(right: int, total: int, low: float, high: float) -> None:
    """Newcombe (1998), Two-sided confidence intervals for the single proportion, table I, method 3."""
    assert wilson(right, total) == pytest.approx((low, high), abs=2e-4)


def test_without_observations_there_is_no_interval() -> None:
    assert wilson(0, 0) is None
    assert t_interval([0.5]) is None
    assert t_test([0.5]) is None


def test_the_interval_of_a_mean_is_that_of_students_sleep_data() -> None:
    """R: t.test(sleep$extra[1:10], sleep$extra[11:20], paired = TRUE)."""
    first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    differences = [one - two for one, two in zip(first, second, strict=True)]
    assert t_interval(differences) == pytest.approx((-2.4598858, -0.7001142), abs=1e-6)
    assert t_test(differences) == pytest.approx(0.002833, abs=1e-6)


@pytest.mark.parametrize(
    ("lost", "won", "known"),
    [(0, 0, 1.0), (0, 5, 0.0625), (5, 0, 0.0625), (3, 3, 1.0), (1, 9, 0.021484375), (2, 8, 0.109375)],
)
def test_mcnemars_exact_test_is_the_binomial_test(lost: int, won: int, known: float) -> None:
    assert mcnemar(lost, won) == pytest.approx(known)


def test_the_interval_of_paired_proportions_is_that_of_newcombe() -> None:
    """Newcombe (1998), Improved confidence intervals for the difference between binomial proportions based on paired
    data: method 10 for 36, 12, 2 and 0 pairs."""
    assert paired_interval(36, 2, 12, 0) == pytest.approx((0.0569, 0.3404), abs=5e-5)
    assert paired_interval(36, 12, 2, 0) == pytest.approx((-0.3404, -0.0569), abs=5e-5)


def test_runs_that_agree_in_all_inputs_may_still_differ_a_little() -> None:
    assert paired_interval(3, 0, 0, 0) == pytest.approx((-0.5615, 0.5615), abs=1e-4)
    assert paired_interval(0, 0, 0, 0) is None


def test_equal_differences_have_no_spread() -> None:
    assert t_test([0.0, 0.0]) == 1.0
    assert t_test([1.0, 1.0]) == 0.0


@settings(max_examples=20)
@given(st.integers(0, 200), st.integers(1, 200))
def test_a_wilson_interval_contains_the_share_and_stays_between_0_and_1(right: int, total: int) -> None:
    found = wilson(min(right, total), total)
    assert found is not None
    low, high = found
    assert 0 <= low <= min(right, total) / total + 1e-12
    assert min(right, total) / total - 1e-12 <= high <= 1
