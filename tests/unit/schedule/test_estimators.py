"""What was measured: how fast prompts are computed, and how long tools take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_agent.core.requests import Usage
from batch_agent.schedule.estimators import PrefillSpeed, ToolWaits


def heard(speed: PrefillSpeed, computed: int, seconds: float, now: float) -> None:
    """A request had so many tokens computed before its first token came, after so many seconds; the prompt was no
    larger, or even smaller than what is said to have been cached."""
    speed.observe(Usage(max(0, computed), max(0, -computed), 0), seconds, seconds, now)


def test_nothing_is_known_before_anything_was_heard() -> None:
    assert PrefillSpeed().tokens_per_second is None


def test_one_long_prompt_is_worth_timing() -> None:
    speed = PrefillSpeed()
    heard(speed, 1000, 0.5, now=10.0)
    assert speed.tokens_per_second == 2000.0


def test_a_short_prompt_by_itself_tells_nothing() -> None:
    speed = PrefillSpeed()
    heard(speed, 255, 0.001, now=10.0)
    assert speed.tokens_per_second is None


def test_many_short_prompts_are_counted_together() -> None:
    speed = PrefillSpeed()
    for number in range(1, 101):
        heard(speed, 100, 0.01, now=10.0 + number / 100)
    assert speed.tokens_per_second == pytest.approx(10_000, rel=0.02)


def test_the_best_that_was_seen_counts() -> None:
    speed = PrefillSpeed()
    heard(speed, 1000, 1.0, now=1.0)
    heard(speed, 1000, 0.5, now=2.0)
    heard(speed, 300, 3.0, now=5.0)
    assert speed.tokens_per_second is not None
    assert 1900 < speed.tokens_per_second <= 2000


def test_a_server_that_became_slow_is_believed_in_the_end() -> None:
    speed = PrefillSpeed()
    heard(speed, 10_000, 1.0, now=1.0)
    for number in range(4000):
        heard(speed, 1000, 1.0, now=2.0 + number)
    assert speed.tokens_per_second == pytest.approx(1000)


@pytest.mark.parametrize("computed", [0, -500])
def test_a_prompt_that_was_all_cached_tells_nothing(computed: int) -> None:
    speed = PrefillSpeed()
    for number in range(10):
        heard(speed, computed, 0.1, now=float(number))
    assert speed.tokens_per_second is None


def test_a_server_that_reports_more_cached_than_there_was_does_not_make_the_others_look_slow() -> None:
    speed = PrefillSpeed()
    for number in range(1, 101):
        heard(speed, 200, 0.01, now=number / 100)
        heard(speed, -200, 0.01, now=number / 100)
    assert speed.tokens_per_second == pytest.approx(20_000, rel=0.02)


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_clock_that_stands_still_does_not_make_it_infinitely_fast(seconds: float) -> None:
    speed = PrefillSpeed()
    for _ in range(1000):
        heard(speed, 10_000, seconds, now=5.0)
    assert speed.tokens_per_second is None


def test_a_request_that_began_before_the_others_counts_from_its_own_start() -> None:
    speed = PrefillSpeed()
    heard(speed, 100, 0.1, now=10.0)
    heard(speed, 5000, 1.05, now=10.05)
    assert speed.tokens_per_second == pytest.approx(5100 / 1.05)


@given(
    st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(0, 20_000), st.floats(0.0, 5.0)), min_size=1, max_size=60),
    st.floats(100.0, 50_000.0),
)
def test_a_server_that_computes_one_prompt_after_the_other_is_never_taken_to_be_faster_than_it_is(
    requests: list[tuple[float, int, float]], true_speed: float
) -> None:
    """Each is sent so long after the one before, and takes a while longer than its prompt to be answered."""
    speed = PrefillSpeed()
    sent = done = 0.0
    for pause, tokens, wait in requests:
        sent += pause
        done = max(done, sent) + tokens / true_speed + wait
        heard(speed, tokens, done - sent, done)
        assert speed.tokens_per_second is None or speed.tokens_per_second <= true_speed * (1 + 1e-6)


def test_prompts_that_are_computed_together_do_not_make_it_look_faster_than_it_is() -> None:
    speed = PrefillSpeed()
    for batch in range(20):
        for _ in range(64):
            heard(speed, 200, 0.6, now=0.6 * (batch + 1))
    assert speed.tokens_per_second is not None
    assert speed.tokens_per_second <= 64 * 200 / 0.6 * 1.01


def test_how_long_a_tool_takes_is_not_known_after_three_waits() -> None:
    waits = ToolWaits()
    for _ in range(3):
        waits.observe("look", 1.0)
    assert waits.estimate(["look"]) is None
    waits.observe("look", 1.0)
    assert waits.estimate(["look"]) == 1.0


def test_three_of_four_waits_are_over_by_then() -> None:
    waits = ToolWaits()
    for seconds in range(1, 65):
        waits.observe("look", float(seconds))
    likely = waits.estimate(["look"])
    assert likely is not None
    assert sum(seconds <= likely for seconds in range(1, 65)) / 64 == pytest.approx(0.75, abs=0.02)


def test_several_tools_take_as_long_as_the_slowest_and_one_unknown_makes_all_unknown() -> None:
    waits = ToolWaits()
    for _ in range(4):
        waits.observe("look", 1.0)
        waits.observe("think", 7.0)
    assert waits.estimate(["look", "think", "look"]) == 7.0
    assert waits.estimate(["look", "new"]) is None
    assert waits.estimate([]) == 0.0


def test_old_waits_are_forgotten() -> None:
    waits = ToolWaits()
    for _ in range(100):
        waits.observe("look", 100.0)
    for _ in range(64):
        waits.observe("look", 1.0)
    assert waits.estimate(["look"]) == 1.0
