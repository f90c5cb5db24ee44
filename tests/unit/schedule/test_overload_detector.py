"""When refusals are more than bad luck."""

import random
from collections.abc import Iterable

import pytest

from batch_agent.schedule.overload_detector import OverloadDetector


def told(seen: OverloadDetector, refused: Iterable[int]) -> list[int]:
    """Of the requests that were refused, those with which most were."""
    return [number for number in refused if seen.is_relevant(number) and seen.is_overloaded(number, number)]


def test_one_after_the_other_shows_that_the_server_wants_less() -> None:
    assert told(OverloadDetector(), range(100, 110)) == [109]


def test_refusals_that_come_in_another_order_than_their_requests_are_counted_by_that_of_the_requests() -> None:
    seen = OverloadDetector()
    assert told(seen, [15, 13, 14, 11, 12, 20, 19, 17, 18]) == []
    assert told(seen, [16]) == [16]


def test_every_second_request_may_be_refused() -> None:
    assert told(OverloadDetector(), range(0, 1000, 2)) == []


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.05, 0.1, 0.2])
def test_random_refusals_of_a_fifth_of_all_requests_are_hardly_ever_taken_for_more(share: float) -> None:
    seen, chance = OverloadDetector(), random.Random(1)
    assert told(seen, (number for number in range(300_000) if chance.random() < share)) == []


def test_most_requests_need_not_be_refused_without_a_gap() -> None:
    seen, chance = OverloadDetector(), random.Random(1)
    [first, *_] = told(seen, (number for number in range(1000) if chance.random() < 0.8))
    assert first < 40


def test_a_limit_that_was_just_met_is_seen_sooner_the_next_time() -> None:
    seen = OverloadDetector()
    assert told(seen, range(10)) == [9]
    assert told(seen, range(50, 54)) == [53]
    assert told(seen, range(400, 410)) == [409]  # by then it is forgotten


def test_a_limit_is_no_more_likely_where_requests_were_refused_all_the_time() -> None:
    seen = OverloadDetector()
    assert told(seen, range(10)) == [9]
    assert told(seen, [*range(12, 50, 4), *range(52, 56)]) == []


def test_requests_that_were_sent_before_a_limit_was_seen_say_nothing_new() -> None:
    seen = OverloadDetector()
    assert [seen.is_overloaded(number, 30) for number in range(10)] == [False] * 9 + [True]
    assert not seen.is_relevant(30)
    assert seen.is_relevant(31)
