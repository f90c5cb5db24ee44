"""Metrics: the mean of a score, and its interval."""

from hypothesis import given, settings
from hypothesis import strategies as st

from batch_agent.scores.intervals import t_interval, wilson
from batch_agent.scores.metrics import metrics_of


def test_a_proportion_has_wilsons_interval() -> None:
    metric = metrics_of((n, {"exact": float(n < 8)}) for n in range(10))["exact"]
    assert (metric.mean, metric.method, metric.inputs, metric.scored, metric.unscored) == (0.8, "wilson", 10, 10, 0)
    assert (metric.low, metric.high) == wilson(8, 10)
    assert str(metric) == "exact: 0.800 [0.490, 0.943], 10 inputs"


def test_other_scores_have_students_interval() -> None:
    values = [0.2, 0.4, 0.9]
    metric = metrics_of((n, {"share": value}) for n, value in enumerate(values))["share"]
    assert (metric.method, (metric.low, metric.high)) == ("t", t_interval(values))


def test_samples_of_an_input_count_once_and_do_not_narrow_the_interval() -> None:
    one = metrics_of((n, {"exact": float(n % 2)}) for n in range(10))["exact"]
    many = metrics_of((n, {"exact": float(n % 2)}) for n in range(10) for _ in range(50))["exact"]
    assert (many.mean, many.inputs, many.scored) == (0.5, 10, 500)
    assert (many.low, many.high, many.method) == (one.low, one.high, "wilson")  # equal samples tell no more than one
    mixed = metrics_of((n, {"exact": float((n + m) % 2)}) for n in range(10) for m in range(3))["exact"]
    assert (mixed.inputs, mixed.scored, mixed.method) == (10, 30, "t by input")


def test_inputs_with_more_samples_do_not_weigh_more() -> None:
    rows = [("a", {"x": 1.0})] * 9 + [("b", {"x": 0.0})]
    assert metrics_of(rows)["x"].mean == 0.5


def test_answers_without_a_score_are_counted() -> None:
    metric = metrics_of([(0, {"x": None}), (1, {"x": 1.0}), (2, {"x": None})])["x"]
    assert (metric.mean, metric.scored, metric.unscored) == (1.0, 1, 2)
    nothing = metrics_of([(0, {"x": None})])["x"]
    assert (nothing.mean, nothing.low, str(nothing)) == (None, None, "x: nothing scored, 1 unscored")


def test_a_single_mean_has_no_interval() -> None:
    metric = metrics_of([(0, {"x": 0.3})])["x"]
    assert (metric.mean, metric.low, metric.high) == (0.3, None, None)


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1)), min_size=1, max_size=30))
def test_the_mean_lies_in_its_interval(scores: list[tuple[int, float]]) -> None:
    metric = metrics_of((row, {"x": score}) for row, score in scores)["x"]
    assert metric.mean is not None
    if metric.low is not None and metric.high is not None:
        assert metric.low <= metric.mean + 1e-9
        assert metric.mean <= metric.high + 1e-9
