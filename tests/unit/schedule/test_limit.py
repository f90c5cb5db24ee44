"""The limit grows slowly while it binds, and is halved once for every episode of refusals."""

import pytest

from batch_agent.schedule.limit import InflightLimit


def grow(limit: InflightLimit, successes: int) -> list[int]:
    return [new for _ in range(successes) if (new := limit.succeeded(limit_binds=True)) is not None]


def test_a_full_round_of_successes_makes_room_for_one_more() -> None:
    limit = InflightLimit(3, fixed=False)
    assert [limit.succeeded(limit_binds=True) for _ in range(7)] == [None, None, 4, None, None, None, 5]
    assert limit.current == 5


def test_a_limit_that_does_not_bind_does_not_grow() -> None:
    limit = InflightLimit(1, fixed=False)
    assert [limit.succeeded(limit_binds=False) for _ in range(100)] == [None] * 100
    assert limit.current == 1


@pytest.mark.parametrize(("start", "most"), [(1020, 1024), (1024, 1024), (2000, 2000)])
def test_there_is_an_end_to_growing(start: int, most: int) -> None:
    limit = InflightLimit(start, fixed=False)
    grow(limit, 10_000)
    assert limit.current == most


def test_a_fixed_limit_does_not_grow() -> None:
    limit = InflightLimit(4, fixed=True)
    assert grow(limit, 1000) == []


def test_a_fixed_limit_is_cut_by_a_refusal_and_grows_back_to_what_it_was() -> None:
    limit = InflightLimit(8, fixed=True)
    assert limit.refused(0.0, None) == 4
    assert grow(limit, 1000) == [5, 6, 7, 8]


def test_refusals_close_together_are_one_episode() -> None:
    limit = InflightLimit(64, fixed=False)
    assert [limit.refused(now, None) for now in (10.0, 10.0, 10.5, 10.99)] == [32, None, None, None]
    assert limit.refused(11.0, None) == 16


@pytest.mark.parametrize(
    ("retry_after", "seconds"), [(None, 1.0), (0.0, 1.0), (0.5, 1.0), (20.0, 20.0), (1e9, 300.0), (float("inf"), 300.0)]
)
def test_an_episode_lasts_as_long_as_the_server_asked_within_reason(retry_after: float | None, seconds: float) -> None:
    limit = InflightLimit(64, fixed=False)
    assert limit.refused(5.0, retry_after) == 32
    assert limit.refused(5.0 + seconds - 0.01, None) is None
    assert limit.refused(5.0 + seconds, None) == 16


@pytest.mark.parametrize("now", [-1000.0, 0.0, 1e9])
def test_the_first_refusal_counts_whatever_the_clock_shows(now: float) -> None:
    assert InflightLimit(2, fixed=False).refused(now, None) == 1


def test_a_limit_of_one_is_not_cut() -> None:
    limit = InflightLimit(1, fixed=False)
    assert [limit.refused(now, None) for now in (0.0, 10.0, 20.0)] == [None, None, None]
    assert limit.current == 1


def test_a_refusal_starts_the_round_of_successes_anew() -> None:
    limit = InflightLimit(4, fixed=False)
    grow(limit, 3)
    limit.refused(0.0, None)
    assert grow(limit, 1) == []
    limit.refused(0.5, None)
    assert grow(limit, 2) == [3]
