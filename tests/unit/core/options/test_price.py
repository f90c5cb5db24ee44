"""Prices are read as users write them, and stored as numbers."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_agent.core.options.price import Price, parse_price, price_from_numbers
from batch_agent.core.requests import LANES, LONG_PROMPTS, NO_USAGE, Lane, Usage

DOLLARS = st.integers(0, 100_000).map(lambda cents: cents / 100)


def prices(depth: int = 2) -> st.SearchStrategy[Price]:
    """Prices that rise with the length of prompts, as those of all providers do."""
    five = st.tuples(*[DOLLARS] * 5)
    starts = st.lists(st.integers(1, 1_000_000), max_size=depth, unique=True).map(sorted)

    def build(numbers: tuple[float, ...], above: list[int]) -> Price:
        tiers = [
            number for step, start in enumerate(above, 2) for number in (start, *(each * step for each in numbers))
        ]
        return price_from_numbers((*numbers, *tiers))

    tiered = st.builds(build, five, starts)
    lanes = st.dictionaries(st.sampled_from(LANES[1:]), tiered).map(lambda given: tuple(sorted(given.items())))
    return st.builds(lambda price, given: replace(price, lanes=given), tiered, lanes)


@st.composite
def usages(draw: st.DrawFn, most: int = 1_500_000) -> Usage:
    prompt = draw(st.integers(0, most))
    cached = draw(st.integers(0, prompt))
    written = draw(st.integers(0, prompt - cached))
    hour = draw(st.integers(0, prompt - cached - written))
    usage = Usage(prompt, cached, draw(st.integers(0, 10_000)), written, hour)
    return usage.in_lane(draw(st.sampled_from(LANES)))


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ((3, 0.3, 15), Price(3e-6, 0.3e-6, 15e-6, 3e-6, 3e-6)),
        ([3, 0.3, 15, 3.75, 6], Price(3e-6, 0.3e-6, 15e-6, 3.75e-6, 6e-6)),
        ({"input": 3, "output": 15}, Price(3e-6, 3e-6, 15e-6, 3e-6, 3e-6)),
        (
            {"input": 1, "cached": 0, "output": 2, "long": {"above": 100, "input": 2, "cached": 0, "output": 3}},
            Price(1e-6, 0.0, 2e-6, 1e-6, 1e-6, Price(2e-6, 0.0, 3e-6, 2e-6, 2e-6), 100),
        ),
    ],
)
def test_a_price_is_read_in_every_format(written: Any, read: Price) -> None:
    assert parse_price(written).numbers == pytest.approx(read.numbers)


@pytest.mark.parametrize(
    "wrong",
    [
        (), (1, 2), (1, 2, 3, 4), "123", None, 1, (1, 2, float("nan")), (1, 2, -1), (1, 2, True), {}, {"input": 1},
        {"input": 1, "output": 2, "inputs": 3}, {"input": 1, "output": 2, "above": 5},
        {"input": 1, "output": 2, "long": {"input": 2, "output": 3}},
        {"input": 1, "output": 2, "long": {"above": 0, "input": 2, "output": 3}},
        {"input": 1, "output": 2, "long": [2, 2, 3]}, {"input": 1, "output": 2, "batch": [1, 1, 1]},
        {"input": 1, "output": 2, "flex": {"input": -1}}, {"input": 1, "output": 2, "flex": {"above": 5}},
        {"input": 1, "output": 2, "flex": {"batch": {"input": 1}}}, {"input": 1, "output": 2, "standard": {"input": 1}},
    ],
)  # fmt: skip
def test_a_price_that_is_not_one_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^"):
        parse_price(wrong)


@given(prices())
def test_a_stored_price_is_read_back(price: Price) -> None:
    assert price_from_numbers(price.numbers).numbers == pytest.approx(price.numbers)


@given(prices(), usages(), st.integers(0, 100), st.integers(0, 100))
def test_no_request_costs_more_than_the_worst_case_of_its_tokens(
    price: Price, usage: Usage, prompt: int, answer: int
) -> None:
    for_hour = usage.written_hour > 0
    worst = price.worst(usage.input + prompt, usage.output + answer, for_hour=for_hour, lane=usage.lane)
    bound = price.at_most(worst)
    assert price.of_request(usage) <= bound * (1 + 1e-9)
    assert price.of_request(worst) <= bound * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("limit", LONG_PROMPTS)
@given(requests=st.lists(usages(), max_size=8), low=DOLLARS, high=DOLLARS, lanes=st.booleans())
def test_a_sum_of_requests_costs_what_they_cost_one_by_one(
    limit: int, requests: list[Usage], low: float, high: float, *, lanes: bool
) -> None:
    numbers = (low, low / 10, low * 5, low * 1.25, low * 2, limit, high, high, high, high, high)
    price = price_from_numbers((*numbers, -1, *numbers, -2, 1, 2, 3) if lanes else numbers)
    total = sum((each.of_request for each in requests), NO_USAGE)
    assert price.of(total) == pytest.approx(sum(map(price.of_request, requests)), abs=1e-9)
    assert Usage.of_counts(total.counts) == total


@given(st.lists(usages(), max_size=8), st.randoms())
def test_a_sum_of_usages_does_not_depend_on_their_order(requests: list[Usage], order: random.Random) -> None:
    total = sum(requests, NO_USAGE)
    shuffled = order.sample(requests, len(requests))
    assert sum(shuffled, NO_USAGE) == total
    assert sum(map(total.of_lane, LANES), NO_USAGE) == total
    for lane in LANES:
        assert total.of_lane(lane) == sum((each for each in requests if each.lane == lane), NO_USAGE)


@pytest.mark.parametrize("lane", ["flex", "batch"])
@given(price=prices(), usage=usages())
def test_a_lane_without_a_price_costs_half(lane: Lane, price: Price, usage: Usage) -> None:
    standard = replace(price, lanes=())
    cost = standard.of_request(usage.in_lane(lane))
    assert cost == pytest.approx(standard.of_request(usage.in_lane("standard")) / 2)


def test_what_is_not_given_for_a_lane_is_half_of_the_standard_price() -> None:
    price = parse_price(
        {
            "input": 4, "cached": 1, "output": 8, "flex": {"input": 3},
            "long": {"above": 200_000, "input": 8, "cached": 2, "output": 16},
        }
    )  # fmt: skip
    assert price.in_lane("flex").numbers == pytest.approx((3, 0.5, 4, 2, 2, 200_000, 4, 1, 8, 4, 4))
    assert price.in_lane("batch").numbers == pytest.approx((2, 0.5, 4, 2, 2, 200_000, 4, 1, 8, 4, 4))


def test_counts_of_writes_may_be_left_out() -> None:
    assert Usage.of_counts((1, 0, 2)) == Usage(1, 0, 2)
    assert Usage.of_counts((3, 0, 2, 1, 1)) == Usage(3, 0, 2, 1, 1)
