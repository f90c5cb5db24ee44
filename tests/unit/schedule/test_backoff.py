"""Delays after failures."""

from batch_agent.schedule.retry import Backoff


def test_delays_double_up_to_the_longest() -> None:
    backoff = Backoff(first=0.5, ceiling=3.0)
    assert [backoff.delay(failures) for failures in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_any_number_of_failures_has_a_delay() -> None:
    assert Backoff(0.5, 30.0).delay(10**9) == 30.0


def test_jitter_takes_away_up_to_half_of_the_delay() -> None:
    backoff = Backoff(first=1.0, ceiling=8.0)
    assert [backoff.jittered(2, jitter) for jitter in (0.0, 0.5)] == [2.0, 3.0]
