"""When refusals are more than bad luck."""

import random

from batch_agent.schedule.refusals import Refusals


def test_one_after_the_other_shows_that_the_server_wants_less() -> None:
    seen = Refusals()
    assert [seen.are_most(number) for number in range(100, 107)] == [False] * 4 + [True] * 3


def test_refusals_that_come_in_another_order_than_their_requests_are_counted_by_that_of_the_requests() -> None:
    seen = Refusals()
    assert [seen.are_most(number) for number in (5, 3, 4, 1, 2)] == [False] * 5
    assert seen.are_most(6)


def test_every_second_request_may_be_refused() -> None:
    seen = Refusals()
    assert not any(seen.are_most(number) for number in range(0, 1000, 2))


def test_bad_luck_with_one_in_twenty_is_hardly_ever_taken_for_more() -> None:
    seen, chance = Refusals(), random.Random(1)
    refused = (number for number in range(100_000) if chance.random() < 0.05)
    assert sum(map(seen.are_most, refused)) <= 3
