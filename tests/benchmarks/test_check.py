"""Whether an agent has become dearer."""

from benchmarks.check import TOLERANCE, moves, versions
from benchmarks.peers.call_count import Calls

BEFORE = {"versions": versions(), "calls": {"single": 100.0}, "cpu": {"single": 1.2}}


def test_a_change_within_the_tolerance_is_reported_and_does_not_fail() -> None:
    [calls, cpu] = moves(BEFORE, {"calls": {"single": 101.0}, "cpu": {"single": 1.25}})
    assert str(calls) == "calls: single: 100.0 to 101.0 (+1.0%)"
    assert not calls.is_beyond
    assert not cpu.is_beyond


def test_a_metric_that_moved_beyond_its_tolerance_is_marked() -> None:
    [dearer] = moves(BEFORE, {"calls": {"single": 100.0 * (1.01 + TOLERANCE["calls"])}})
    [cheaper] = moves(BEFORE, {"calls": {"single": 90.0}})
    assert dearer.is_beyond
    assert "DEARER" in str(dearer)
    assert "new baseline" in str(cheaper)


def test_function_calls_of_another_python_version_are_not_compared() -> None:
    other = BEFORE | {"versions": {"python": "2.7"}}
    assert [move.part for move in moves(other, {"calls": {"single": 900.0}, "cpu": {"single": 1.2}})] == ["cpu"]


def test_a_metric_that_the_baseline_lacks_is_left_out() -> None:
    assert moves(BEFORE, {"calls": {"new": 1.0}}) == []


def test_the_same_work_takes_the_same_number_of_function_calls_each_time() -> None:
    def work() -> int:
        return sum(len(str(number)) for number in range(50))

    counted = []
    for _ in range(2):
        with Calls() as calls:
            work()
        counted.append(calls.number)
    assert counted[0] == counted[1] > 100
