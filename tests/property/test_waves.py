"""A wave is closed exactly once it may be, and divided within every limit, whatever arrives in which order."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from batch_agent.schedule.lanes.waves import (
    GRACE_SECONDS,
    LINGER_SECONDS,
    MAX_OPEN_SECONDS,
    EnqueuedTokens,
    SubmissionLimits,
    Wave,
    WaveLine,
    divide,
)

SIZES = st.lists(st.integers(1, 5000), min_size=1, max_size=60)
LIMITS = st.builds(SubmissionLimits, st.integers(1, 20), st.integers(1, 20_000))
GAPS = st.lists(st.floats(0, 120), min_size=1, max_size=30)


def lines(sizes: list[int]) -> list[WaveLine]:
    return [WaveLine(str(number), size) for number, size in enumerate(sizes)]


@given(SIZES, LIMITS, st.integers(1, 10_000))
def test_a_wave_is_divided_in_order_within_every_limit(sizes: list[int], limits: SubmissionLimits, tokens: int) -> None:
    given_lines = lines(sizes)
    parts = divide(given_lines, limits, tokens)
    assert [line for part in parts for line in part] == given_lines
    for part in parts:
        assert part
        assert len(part) <= limits.lines
        assert len(part) == 1 or sum(line.size for line in part) <= limits.size
        assert len(part) == 1 or sum(line.tokens for line in part) <= tokens


@given(SIZES, LIMITS, st.integers(1, 10_000))
def test_no_two_neighbouring_parts_would_fit_into_one(sizes: list[int], limits: SubmissionLimits, tokens: int) -> None:
    parts = divide(lines(sizes), limits, tokens)
    for part, following in pairwise(parts):
        more = [*part, following[0]]
        assert (
            len(more) > limits.lines
            or sum(line.size for line in more) > limits.size
            or sum(line.tokens for line in more) > tokens
        )


@given(GAPS, st.integers(1, 5))
def test_a_wave_is_closed_soon_after_the_last_agent_and_never_late(gaps: list[float], on_their_way: int) -> None:
    wave, now = Wave(SubmissionLimits(1000)), 0.0
    first = gaps[0]
    for number, gap in enumerate(gaps):
        now += gap
        wave.add(WaveLine(str(number), 1), now)
    waits = wave.closes_at(on_their_way, now)
    assert waits == min(now + LINGER_SECONDS, first + MAX_OPEN_SECONDS)
    assert wave.closes_at(0, now) == now + GRACE_SECONDS
    assert wave.closes_at(-1, now + 1) == now + 1 + GRACE_SECONDS


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_a_wave_has_the_lines_whose_agents_still_wait_and_an_empty_one_is_never_closed(
    steps: list[tuple[bool, int]],
) -> None:
    wave, expected = Wave(SubmissionLimits(1000, 1000)), set[str]()
    for adds, number in steps:
        key = str(number)
        if adds and key not in expected:
            wave.add(WaveLine(key, 10), 1.0)
            expected.add(key)
        elif not adds:
            wave.remove(key)
            expected.discard(key)
        assert set(wave.lines) == expected
        assert (wave.closes_at(0, 1.0) is None) == (not expected)
        assert not wave.is_full


@given(st.integers(1, 30))
def test_a_full_wave_is_closed_at_once(limit: int) -> None:
    wave = Wave(SubmissionLimits(limit))
    for number in range(limit):
        assert not wave.is_full
        wave.add(WaveLine(str(number), 1), float(number))
    assert wave.is_full
    assert wave.closes_at(100, 1000.0) == limit - 1


@given(st.lists(st.integers(100, 4000), min_size=1, max_size=30), st.integers(500, 5000))
def test_submissions_within_the_limit_that_the_provider_told_are_never_over_it(sizes: list[int], told: int) -> None:
    enqueued = EnqueuedTokens()
    big = [WaveLine("big", 4 * told + 4)]
    enqueued.add("a", big)
    enqueued.refused("a", f"Enqueued token limit reached for m. Limit: {told:,} enqueued tokens.")
    assert enqueued.limit == told
    in_flight: dict[str, int] = {}
    for number, part in enumerate(divide(lines(sizes), SubmissionLimits(), enqueued.limit)):
        if not enqueued.fits(part):
            for wave in list(in_flight):
                enqueued.remove(wave)
                del in_flight[wave]
        assert enqueued.fits(part)
        enqueued.add(str(number), part)
        in_flight[str(number)] = sum(line.tokens for line in part)
        assert len(in_flight) == 1 or sum(in_flight.values()) <= told


def test_a_refusal_that_the_estimate_does_not_explain_halves_what_is_submitted_together() -> None:
    enqueued = EnqueuedTokens()
    enqueued.add("a", [WaveLine("a", 40_000)])
    enqueued.refused("a", "Limit: 90,000 enqueued tokens.")
    assert 4_500 < enqueued.limit <= 5_001


def test_a_refusal_while_others_are_enqueued_says_nothing_about_the_size_of_a_submission() -> None:
    enqueued = EnqueuedTokens()
    enqueued.add("a", [WaveLine("a", 40_000)])
    enqueued.add("b", [WaveLine("b", 40_000)])
    enqueued.refused("b", "too much is enqueued")
    assert enqueued.limit == float("inf")
    assert enqueued.fits([WaveLine("b", 40_000)])
