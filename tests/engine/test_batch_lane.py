"""The batch lane in virtual time: waves, limits, budgets and resuming."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.support.batch_provider import BatchProvider, turns_of
from tests.support.event_list import EventList

from batch_agent import AgentResult, BatchAgent, ErrorKind, SpecError, Tool
from batch_agent.core.events import Notice

LONGEST = 6


@Tool.define
async def look(key: str) -> str:
    """Looks up a key."""
    await asyncio.sleep(1)
    return f"value of {key}"


async def run(provider: BatchProvider, folder: Path | None, agents: int = 20, **options: Any) -> list[AgentResult]:
    options = {"lane": "batch", "tools": [look], "max_turns": 8, "max_tokens": 100, **options}
    results: list[AgentResult] = await BatchAgent.run(
        task="Do number {n}",
        inputs=[{"n": number} for number in range(agents)],
        backend=provider,
        model="m",
        checkpoint_dir=folder,
        **options,
    )
    return results


async def interrupt(provider: BatchProvider, running: Coroutine[Any, Any, object]) -> None:
    """Cancels a run as soon as it waits for a batch."""
    task = asyncio.create_task(running)
    await provider.polled.wait()
    task.cancel()
    await asyncio.wait([task])


def outputs(results: list[AgentResult]) -> list[Any]:
    return [result.output for result in results]


@pytest.mark.slow
async def test_a_run_in_batches_has_the_results_of_a_live_run_in_as_many_waves_as_the_longest_agent_has_turns(
    tmp_path: Path,
) -> None:
    live, batch = BatchProvider(), BatchProvider()
    expected = await run(live, tmp_path / "live", 200, lane="standard")
    results = await run(batch, tmp_path / "batch", 200)
    assert outputs(results) == outputs(expected)
    assert all(result.ok for result in results)
    assert len(batch.batches) <= LONGEST + 1
    assert max(map(turns_of, range(200))) == LONGEST
    assert len(next(iter(batch.batches.values())).lines) == 200


async def test_usage_and_cost_are_those_of_the_batch_lane(tmp_path: Path) -> None:
    prices = {"m": (1.0, 0.5, 4.0)}
    live = await run(BatchProvider(), tmp_path / "live", lane="standard", prices=prices)
    batch = await run(BatchProvider(), tmp_path / "batch", prices=prices)
    for each, other in zip(batch, live, strict=True):
        assert each.usage.of_lane("batch").input == each.usage.input == other.usage.input
        assert each.cost is not None
        assert other.cost is not None
        assert each.cost == pytest.approx(0.5 * other.cost)


async def test_a_wave_does_not_wait_for_a_tool_that_is_slower_than_the_linger(tmp_path: Path) -> None:
    @Tool.define(name="look")
    async def slow(key: str) -> str:
        await asyncio.sleep(3600 if key.startswith("3-") else 1)
        return f"value of {key}"

    provider = BatchProvider(seconds=100)
    results = await run(provider, tmp_path, 6, tools=[slow], timeout_per_tool=None)
    assert all(result.ok for result in results)
    second = list(provider.batches.values())[1]
    assert len(second.lines) == 4  # without the agent that waits for an hour, and the one that has ended


async def test_an_agent_that_waits_for_the_budget_does_not_hold_up_the_wave(tmp_path: Path) -> None:
    provider = BatchProvider(seconds=1000)
    results = await run(provider, tmp_path, 40, max_total_tokens=40_000)
    assert sum(result.ok for result in results) > 5
    assert {result.error.kind for result in results if result.error is not None} <= {ErrorKind.BUDGET}
    spent = sum(result.usage.input + result.usage.output for result in results)
    assert spent <= 40_000
    waited = [each.created for each in provider.batches.values()]
    assert waited[0] < 5


async def test_a_wave_is_divided_by_the_limit_of_enqueued_tokens(tmp_path: Path) -> None:
    provider = BatchProvider(seconds=100, enqueued_tokens=2_000)
    results = await run(provider, tmp_path, 30)
    assert all(result.ok for result in results)
    assert 0 < provider.refused_for_tokens <= 3
    assert max(provider.billed.values()) == 1


async def test_a_resumed_run_takes_over_what_was_reserved_and_counts_what_was_billed(tmp_path: Path) -> None:
    """The budget pays for the first wave once: if its reservation counted twice, agents would fail."""
    provider, agents = BatchProvider(seconds=1000), 20
    limits: dict[str, Any] = {"prices": {"m": (1000.0, 1000.0, 1000.0)}, "max_usd": 4.5}
    await interrupt(provider, run(provider, tmp_path, agents, tools=[], max_tokens=300, **limits))
    assert len(provider.batches) == 1
    results = await run(provider, tmp_path, agents, tools=[], max_tokens=300, **limits)
    done = [result for result in results if result.ok]
    assert len(provider.batches) == 1
    assert len(done) == agents, [result.error for result in results if not result.ok][:1]
    assert max(provider.billed.values()) == 1


async def test_a_derived_limit_of_answers_does_not_make_another_request_of_it(tmp_path: Path) -> None:
    provider = BatchProvider(seconds=1000)
    await interrupt(provider, run(provider, tmp_path, tools=[], max_tokens=None, max_total_tokens=900_000))
    results = await run(provider, tmp_path, tools=[], max_tokens=None, max_total_tokens=800_000)
    assert all(result.ok for result in results)
    assert len(provider.batches) == 1


async def test_an_interrupted_run_says_what_stays_at_the_provider_and_the_next_one_collects_it(tmp_path: Path) -> None:
    provider, first, second = BatchProvider(seconds=1000), EventList(), EventList()
    await interrupt(provider, run(provider, tmp_path, events=first))
    said = [event.text for event in first.events if isinstance(event, Notice)]
    assert "20 requests stay at provider in 1 batch (batch-0)" in said[-1]
    results = await run(provider, tmp_path, events=second)
    assert all(result.ok for result in results)
    said = [event.text for event in second.events if isinstance(event, Notice)]
    assert said[0].startswith("20 requests were submitted to provider before")
    assert max(provider.billed.values()) == 1


async def test_an_agent_that_ends_before_its_wave_is_closed_is_not_submitted(tmp_path: Path) -> None:
    @Tool.define(name="look")
    async def slow(key: str) -> str:
        await asyncio.sleep(50)
        return key

    provider = BatchProvider(seconds=10)
    results = await run(provider, tmp_path, 6, tools=[slow], deadline=30)
    assert [result.ok for result in results] == [True] + [False] * 5
    assert len(provider.batches) == 1


async def test_a_run_that_is_resumed_in_lane_auto_waits_for_what_was_submitted(tmp_path: Path) -> None:
    provider = BatchProvider(seconds=1000)
    await interrupt(provider, run(provider, tmp_path, tools=[]))
    results = await run(provider, tmp_path, tools=[], lane="auto")
    assert all(result.ok for result in results)
    assert not provider.live
    assert max(provider.billed.values()) == 1


async def test_a_run_that_is_resumed_in_another_lane_says_that_requests_are_billed_again(tmp_path: Path) -> None:
    provider, log = BatchProvider(seconds=1000), EventList()
    await interrupt(provider, run(provider, tmp_path, tools=[]))
    results = await run(provider, tmp_path, tools=[], lane="standard", events=log)
    assert all(result.ok for result in results)
    said = [event.text for event in log.events if isinstance(event, Notice)]
    assert any("20 requests of this run are in batches" in text and "lane='batch' collects" in text for text in said)


async def test_the_batch_lane_needs_a_checkpoint() -> None:
    with pytest.raises(SpecError, match="needs checkpoint_dir"):
        await run(BatchProvider(), None)
