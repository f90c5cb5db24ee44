"""What a run counts is what the provider bills. The invoices here follow the providers' public rules."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest
from tests.support.engine_harness import asked, run
from tests.support.event_list import EventList

from batch_agent import BackendError, ErrorKind, Results
from batch_agent.core.events import BudgetReported
from batch_agent.core.requests import LANES, Lane, Request, Usage
from batch_agent.testing import Answer, ScriptedBackend, say


@dataclass(frozen=True)
class Tariff:
    """Dollars per million tokens: input, cache read, output, cache written for five minutes and for an hour."""

    base: tuple[str, str, str, str, str]
    long: tuple[str, str, str, str, str] | None = None
    above: int = 200_000
    lanes: Mapping[Lane, "Tariff"] = field(default_factory=dict)
    """Of lanes that do not cost half."""

    def bill(self, usage: Usage, lane: Lane = "standard") -> Decimal:
        """A prompt above the limit has higher prices for all of the request."""
        if lane != "standard":
            return self.lanes[lane].bill(usage) if lane in self.lanes else self.bill(usage) / 2
        is_long = self.long is not None and usage.input > self.above
        plain, read, output, minutes, hour = map(Decimal, self.long if is_long and self.long else self.base)
        rest = usage.input - usage.cached - usage.written - usage.written_hour
        lines = [
            (rest, plain), (usage.cached, read), (usage.output, output), (usage.written, minutes),
            (usage.written_hour, hour),
        ]  # fmt: skip
        return sum((tokens * price for tokens, price in lines), Decimal(0)) / 1_000_000


SHAPES: dict[str, tuple[str, str, Any, Tariff]] = {
    "anthropic, in the table": ("anthropic", "claude-opus-4-5", None, Tariff(("5", "0.5", "25", "6.25", "10"))),
    "anthropic, long prompts": (
        "anthropic", "claude-sonnet-4-5", None,
        Tariff(("3", "0.3", "15", "3.75", "6"), ("6", "0.6", "22.5", "7.5", "12")),
    ),
    "anthropic, three numbers": ("anthropic", "own", (4, 0.4, 20), Tariff(("4", "0.4", "20", "5", "8"))),
    "bedrock, in the table": (
        "bedrock", "us.anthropic.claude-sonnet-4-5-20250929-v1:0", None,
        Tariff(("3.3", "0.33", "16.5", "4.125", "6.6")),
    ),
    "bedrock, writes at the input price": (
        "bedrock", "us.amazon.nova-pro-v1:0", None, Tariff(("0.8", "0.2", "3.2", "0.8", "0.8")),
    ),
    "openai, in the table": ("openai", "gpt-5-mini", None, Tariff(("0.25", "0.025", "2", "0.25", "0.25"))),
    "openai, long prompts": (
        "openai", "gpt-5.4", None,
        Tariff(("2.5", "0.25", "15", "2.5", "2.5"), ("5", "0.5", "22.5", "5", "5"), 272_000),
    ),
    "gemini, by hand": (
        "openai", "gemini",
        {
            "input": 1.25, "cached": 0.125, "output": 10,
            "long": {"above": 200_000, "input": 2.5, "cached": 0.25, "output": 15},
        },
        Tariff(("1.25", "0.125", "10", "1.25", "1.25"), ("2.5", "0.25", "15", "2.5", "2.5")),
    ),
    "lanes by hand": (
        "openai", "own",
        {"input": 2, "cached": 1, "output": 8, "flex": {"input": 1.5, "output": 7}, "batch": {"cached": 0.25}},
        Tariff(
            ("2", "1", "8", "2", "2"),
            lanes={
                "flex": Tariff(("1.5", "0.5", "7", "1", "1")),
                "batch": Tariff(("1", "0.25", "4", "1", "1")),
            },
        ),
    ),
    "five numbers": ("faulty", "own", [1, 0.1, 2, 3, 5], Tariff(("1", "0.1", "2", "3", "5"))),
}  # fmt: skip


def some_usage(dice: random.Random, request: Request, *, hour: bool = True) -> Usage:
    """Any usage that the request can have: a token for each byte at most."""
    prompt = dice.randint(1, len(asked(request)))
    cached, minutes, rest = (dice.randint(0, prompt // 3) for _ in range(3))
    return Usage(prompt, cached, dice.randint(1, request.sampling.max_tokens or 1), minutes, rest if hour else 0)


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [("standard",), ("flex",), ("batch",), LANES], ids="+".join)
@pytest.mark.parametrize("shape", SHAPES)
async def test_the_ledger_of_a_run_is_the_providers_invoice(shape: str, lanes: tuple[Lane, ...]) -> None:
    backend, model, price, tariff = SHAPES[shape]
    dice, log, invoice = random.Random(shape), EventList(), Decimal(0)

    def answer(request: Request) -> Answer:
        nonlocal invoice
        usage, lane = some_usage(dice, request), dice.choice(lanes)
        invoice += tariff.bill(usage, lane)
        return say("fine", usage.in_lane(lane))

    prices = {} if price is None else {model: price}
    inputs = [f"{n} " + "x" * dice.choice((500, 90_000, 400_000)) for n in range(60)]
    results = await run(
        ScriptedBackend(answer, seconds=1.0, name=backend), inputs, model=model, prices=prices, max_usd=1000.0,
        max_tokens=4_000, events=log,
    )  # fmt: skip
    [event] = [event for event in log.events if isinstance(event, BudgetReported)]
    assert all(result.ok for result in results)
    assert event.cost == pytest.approx(float(invoice), rel=1e-3)
    assert sum(result.cost or 0.0 for result in results) == pytest.approx(float(invoice), rel=1e-3)
    assert isinstance(results, Results)
    assert results.cost == pytest.approx(float(invoice), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
async def test_cache_writes_and_retries_of_200_agents_stay_within_the_budget(seed: int) -> None:
    dice = random.Random(seed)
    backend, model, price, tariff = SHAPES[dice.choice(list(SHAPES))]
    billed, limit = Decimal(0), dice.choice((0.02, 0.1, 0.5))
    kept = dice.choice(("5m", "1h"))

    def answer(request: Request) -> Answer:
        nonlocal billed
        fault = dice.choice(("", "", "", "aborted", "limited", "silent"))
        if fault == "limited":
            raise BackendError(ErrorKind.RATE_LIMITED, "later", status=429, retry_after=0.1)
        prompt = len(asked(request))
        written = dice.choice((0, prompt, prompt))
        hour = written if kept == "1h" else 0
        usage = Usage(prompt, 0, dice.randint(1, request.sampling.max_tokens or 1), written - hour, hour)
        lane = dice.choice(LANES)
        billed += tariff.bill(usage, lane)
        if fault == "aborted":
            raise BackendError(ErrorKind.SERVER, "given up", status=200)
        return say("fine", Usage() if fault == "silent" else usage.in_lane(lane))

    results = await run(
        ScriptedBackend(answer, seconds=1.0, name=backend), [f"{n:04} " + "x" * 2_000 for n in range(200)],
        model=model, prices={} if price is None else {model: price}, max_usd=limit, max_tokens=50, max_retries=3,
        max_inflight=200, extra={"cache_control": {"type": "ephemeral", "ttl": kept}},
    )  # fmt: skip
    assert len(results) == 200
    assert 0 < billed <= Decimal(str(limit))
