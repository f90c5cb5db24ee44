"""What a run may spend: in tokens, in dollars and in time."""

import random
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine_harness import asked, now, run
from tests.support.event_list import EventList

from batch_agent import BackendError, ErrorKind, SpecError
from batch_agent.core.events import BudgetReported
from batch_agent.core.requests import Request, Usage
from batch_agent.testing import Answer, ScriptedBackend, say


def honest(seed: int = 0, **traits: Any) -> ScriptedBackend:
    """Takes at most what it was given: a token for every two bytes, and an answer of any length up to max_tokens."""
    dice = random.Random(seed)

    def answer(request: Request) -> Answer:
        most = request.sampling.max_tokens or 1
        return say("fine", Usage(len(asked(request)) // 2, 0, dice.randint(1, most)))

    return ScriptedBackend(answer, seconds=1.0, **traits)


def spent(results: Any) -> int:
    return sum(result.usage.input + result.usage.output for result in results)


INPUTS = ["x" * 40] * 300


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
async def test_a_budget_of_tokens_is_never_exceeded_under_concurrency(seed: int) -> None:
    results = await run(honest(seed), INPUTS, max_total_tokens=5_000, max_tokens=50, max_inflight=64)
    assert len(results) == len(INPUTS)
    assert 4_000 < spent(results) <= 5_000
    kinds = {result.error.kind for result in results if result.error}
    assert kinds == {ErrorKind.BUDGET}


async def test_a_dollar_budget_is_computed_from_the_price_and_reported_at_the_end() -> None:
    log = EventList()
    prices = {"scripted": (10.0, 1.0, 40.0)}
    results = await run(honest(), INPUTS, max_usd=0.1, prices=prices, max_tokens=50, events=log)
    [event] = [event for event in log.events if isinstance(event, BudgetReported)]
    usage = [result.usage for result in results]
    assert event.cost == pytest.approx(sum(each.input * 10e-6 + each.output * 40e-6 for each in usage))
    assert 0.08 < event.cost <= 0.1
    assert event.tokens == spent(results)


async def test_a_model_without_a_price_needs_one_before_anything_is_sent() -> None:
    backend = honest()
    with pytest.raises(SpecError, match="The price of 'scripted' is unknown"):
        await run(backend, INPUTS, max_usd=1.0)
    assert not backend.requests


async def test_a_known_model_has_a_built_in_price() -> None:
    log = EventList()
    await run(honest(name="openai"), ["x" * 40], max_usd=1.0, model="gpt-4o", max_tokens=50, events=log)
    [event] = [event for event in log.events if isinstance(event, BudgetReported)]
    assert 0 < event.cost < 0.01


async def test_spent_tokens_are_kept_across_runs_of_a_checkpoint(tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_total_tokens": 2_000, "max_tokens": 50, "checkpoint_dir": tmp_path}
    first = await run(honest(), [f"{n:040}" for n in range(100)], **options)
    assert 1_500 < spent(first) <= 2_000
    second = await run(honest(), [f"{n:040}" for n in range(100)], **options)
    assert spent(second) <= 2_000
    assert [result.index for result in second if result.ok][: len(first)] >= [r.index for r in first if r.ok]


async def test_a_failed_request_that_may_have_been_billed_counts_in_full() -> None:
    def answer(request: Request) -> Answer:
        return BackendError(ErrorKind.CONNECTION, "reset")

    log = EventList()
    [result] = await run(ScriptedBackend(answer), ["x"], max_total_tokens=1_000, max_tokens=200, events=log)
    assert result.error is not None
    [event] = [event for event in log.events if isinstance(event, BudgetReported)]
    assert event.tokens >= 200


async def test_a_request_without_reported_usage_is_counted_at_its_maximum() -> None:
    backend = ScriptedBackend(lambda request: say("fine"))
    results = await run(backend, INPUTS, max_total_tokens=5_000, max_tokens=50, max_inflight=4)
    assert 0 < sum(result.ok for result in results) < 40


async def test_after_the_deadline_no_request_is_sent_and_running_ones_end() -> None:
    backend = ScriptedBackend(lambda request: say("fine"), seconds=4.0)
    results = await run(backend, [str(n) for n in range(100)], deadline=10.0, max_inflight=4)
    assert [result.ok for result in results] == [True] * 8 + [False] * 92
    assert {result.error.kind for result in results if result.error} == {ErrorKind.BUDGET}
    assert "deadline of 10 s" in str(results[-1].error)
    assert now() == pytest.approx(10.0)
    assert backend.in_flight == 0
