"""Lanes flex and auto over HTTP: what the simulated service bills is what the run reports."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.event_list import EventList

from batch_agent import BatchAgent, Results, Tool
from batch_agent.core.events import SchedulingReported
from batch_agent.core.requests import NO_USAGE, Lane, Usage
from batch_agent.core.run_reports import LaneUse
from batch_agent.lanes import lane_turn_runner
from batch_agent.schedule.lanes import lane_choice
from batch_agent.schedule.retry import Backoff
from batch_agent.sim import BatchConfig, FaultRates, Script, SimConfig, SimServer

PRICES = {"sim": (100, 100, 100)}
SCRIPT = Script(answer_tokens=8)
CALL = '{"calls": [{"name": "look", "arguments": {"key": "a"}}]}'
THREE_CALLS = f'[[sim: [{CALL}, {CALL}, {CALL}, {{"text": "done"}}]]]'
NO_CALL = '[[sim: {"text": "done"}]]'


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_turn_runner, "_BACKOFF", Backoff(0.01, 0.05))


@pytest.fixture
def sim() -> Iterator[SimServer]:
    config = SimConfig(
        zero_latency=True, batches=BatchConfig(seconds=0.1), faults=FaultRates(flex_unavailable=0.3, seed=3)
    )
    with SimServer(config, SCRIPT) as server:
        yield server


def lane_use(log: EventList) -> LaneUse:
    [report] = [event.scheduling.lanes for event in log.events if isinstance(event, SchedulingReported)]
    assert report is not None
    return report


async def run(sim: SimServer, count: int, **options: Any) -> tuple[Results[str], LaneUse]:
    log = EventList()
    inputs = [f"item {number}" for number in range(count)]
    results = await BatchAgent.run(
        task="About {it}", inputs=inputs, backend=sim.url, prices=PRICES, events=log, **options
    )
    assert [result.error for result in results] == [None] * count
    return results, lane_use(log)


def total(results: Results[str]) -> Usage:
    return sum((result.usage for result in results), NO_USAGE)


def assert_billed(sim: SimServer, used: Usage, lane: Lane, requests: int) -> None:
    part = used.of_lane(lane)
    assert sim.billed(lane) == {
        "requests": requests, "prompt_tokens": part.input, "completion_tokens": part.output
    }  # fmt: skip


async def test_flex_is_billed_at_half_the_price_and_refusals_are_not(sim: SimServer) -> None:
    results, use = await run(sim, 40, lane="flex", max_retries=0)
    used = total(results)
    assert_billed(sim, used, "flex", 40)
    assert sim.billed("standard")["requests"] == 0
    assert use.requests == (("flex", 40),)
    assert use.refused > 5
    assert sum(result.cost or 0.0 for result in results) == pytest.approx((used.input + used.output) * 50e-6)


@pytest.mark.slow
async def test_auto_takes_batches_where_a_checkpoint_keeps_them(sim: SimServer, tmp_path: Path) -> None:
    @Tool.define
    async def look(key: str) -> str:
        """Looks."""
        return f"about {key}"

    results, use = await run(sim, 20, lane="auto", tools=[look], checkpoint_dir=tmp_path)
    used = total(results)
    turns = sum(result.turns for result in results)
    assert turns > 20
    assert use.requests == (("batch", turns),)
    assert_billed(sim, used, "batch", turns)
    assert used == used.of_lane("batch")
    assert sum(result.cost or 0.0 for result in results) == pytest.approx((used.input + used.output) * 50e-6)


async def test_auto_without_a_checkpoint_takes_flex(sim: SimServer) -> None:
    results, use = await run(sim, 10, lane="auto")
    assert use.requests == (("flex", 10),)
    assert_billed(sim, total(results), "flex", 10)


async def test_auto_with_a_short_deadline_takes_the_lane_standard(sim: SimServer, tmp_path: Path) -> None:
    results, use = await run(sim, 10, lane="auto", deadline=60, checkpoint_dir=tmp_path)
    assert use.requests == (("standard", 10),)
    assert_billed(sim, total(results), "standard", 10)


async def test_the_last_agents_are_not_submitted_as_a_wave_of_their_own(
    sim: SimServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_choice, "_LONG_WAVE", 0.0)

    @Tool.define
    async def look(key: str) -> str:
        """Looks."""
        return f"about {key}"

    log = EventList()
    inputs = [f"item {number} {THREE_CALLS if number == 7 else NO_CALL}" for number in range(60)]
    results = await BatchAgent.run(
        task="About {it}",
        inputs=inputs,
        backend=sim.url,
        tools=[look],
        lane="auto",
        checkpoint_dir=tmp_path,
        events=log,
    )
    assert [result.error for result in results] == [None] * 60
    use = dict(lane_use(log).requests)
    assert use["batch"] == 60
    assert results[7].turns == 4
    assert use["flex"] == 3
