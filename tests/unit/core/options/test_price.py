"""Prices are read as users write them, and stored as numbers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_agent.core.options.price import Price, parse_price, price_from_numbers
from batch_agent.core.requests import LONG_PROMPT, NO_USAGE, Usage

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

    return st.builds(build, five, starts)


@st.composite
def usages(draw: st.DrawFn, most: int = 1_500_000) -> Usage:
    prompt = draw(st.integers(0, most))
    cached = draw(st.integers(0, prompt))
    written = draw(st.integers(0, prompt - cached))
    hour = draw(st.integers(0, prompt - cached - written))
    return Usage(prompt, cached, draw(st.integers(0, 10_000)), written, hour)


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
        {"input": 1, "output": 2, "long": [2, 2, 3]},
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
    worst = price.worst(usage.input + prompt, usage.output + answer, for_hour=usage.written_hour > 0)
    bound = price.at_most(worst)
    assert price.of_request(usage) <= bound * (1 + 1e-9)
    assert price.of_request(worst) <= bound * (1 + 1e-9)


@given(st.lists(usages(), max_size=8), DOLLARS, DOLLARS)
def test_a_sum_of_requests_costs_what_they_cost_one_by_one(requests: list[Usage], low: float, high: float) -> None:
    price = price_from_numbers((low, low / 10, low * 5, low * 1.25, low * 2, LONG_PROMPT, high, high, high, high, high))
    total = sum((each.of_request for each in requests), NO_USAGE)
    assert price.of(total) == pytest.approx(sum(map(price.of_request, requests)), abs=1e-9)
    assert Usage.of_counts(total.counts) == total
