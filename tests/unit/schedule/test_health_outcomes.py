"""How much of the last requests went wrong."""

from batch_agent.schedule.health import Outcomes


def outcomes(good: int, bad: int) -> Outcomes:
    seen = Outcomes()
    for _ in range(good):
        seen.record_success()
    for _ in range(bad):
        seen.record_failure()
    return seen


def test_a_few_failed_outcomes_show_nothing() -> None:
    assert [outcomes(0, bad).failure_rate for bad in range(4)] == [0.0, 0.0, 0.0, 1.0]


def test_old_outcomes_are_forgotten() -> None:
    assert outcomes(100_000, 30).failure_rate > 0.5
    recovered = outcomes(0, 100_000)
    for _ in range(200):
        recovered.record_success()
    assert recovered.failure_rate == 0.0
