"""Runs in the batch lane with faults at every step, interrupted and resumed: nothing is lost, nothing is paid twice."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from tests.support.batch_provider import BatchProvider, Faults

from batch_agent import AgentResult, BatchAgent, RunStopped, Tool
from batch_agent.virtual_time import run_virtual

_AGENTS = 12
_RUNS = 500
_RUNS_EACH_TIME = 20


@Tool.define
async def look(key: str) -> str:
    """Looks up a key."""
    await asyncio.sleep(1 + len(key) % 3)
    return f"value of {key}"


async def run(provider: BatchProvider, folder: Path | None, lane: Any, **options: Any) -> list[AgentResult]:
    results: list[AgentResult] = await BatchAgent.run(
        task="Do number {n}",
        inputs=[{"n": number} for number in range(_AGENTS)],
        tools=[look],
        backend=provider,
        model="m",
        lane=lane,
        checkpoint_dir=folder,
        max_turns=8,
        max_retries=30,
        **options,
    )
    return results


async def run_interrupted(provider: BatchProvider, folder: Path, dice: random.Random) -> list[AgentResult]:
    """Interrupts the run at random times, and resumes it until it ends."""
    limits = [dice.choice((1, 10, 60, 300, 1000)) for _ in range(dice.choice((0, 0, 1, 2, 4)))]
    for limit in (*limits, *[None] * 50):
        try:
            async with asyncio.timeout(limit):
                results = await run(provider, folder, "batch")
        except (TimeoutError, RunStopped):  # the provider may have failed everything for a while
            continue
        if all(result.ok for result in results):  # a line that the provider calls invalid fails its agent
            return results
    raise AssertionError("the run does not come to an end")


@pytest.fixture(autouse=True)
def few_gauges(monkeypatch: pytest.MonkeyPatch) -> None:
    """A day of virtual time has many seconds."""
    monkeypatch.setattr("batch_agent.engine.monitor._INTERVAL", 3600.0)


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    """The answers of a run in the standard lane."""
    results = run_virtual(run(BatchProvider(), None, "standard"))
    assert all(result.ok for result in results)
    return [result.output for result in results]


def check(seed: int, folder: Path, expected: list[Any]) -> None:
    dice = random.Random(seed)
    faults = Faults(
        line=dice.choice((0.0, 0.05, 0.3)),
        batch=dice.choice((0.0, 0.2, 0.5)),
        call=dice.choice((0.0, 0.1, 0.4)),
        cut=dice.choice((0.0, 0.02)),
    )
    provider = BatchProvider(seed, faults, seconds=240)
    results = run_virtual(run_interrupted(provider, folder, dice))
    assert [result.output for result in results] == expected
    for body, count in provider.billed.items():
        assert count == 1 + provider.lost[body], "an answer that the provider had was paid for again"
    assert not provider.live


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(_RUNS_EACH_TIME))
def test_a_run_with_faults_has_all_results_and_pays_for_each_answer_once(
    seed: int, tmp_path: Path, expected: list[Any]
) -> None:
    check(seed, tmp_path, expected)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(_RUNS_EACH_TIME + 80, _RUNS, 20))
def test_hundreds_of_runs_with_faults_have_all_results_and_pay_for_each_answer_once(
    first: int, tmp_path: Path, expected: list[Any]
) -> None:
    for seed in range(first, first + 20):
        check(seed, tmp_path / str(seed), expected)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(_RUNS_EACH_TIME, _RUNS_EACH_TIME + 80, 20))
def test_many_runs_with_faults_have_all_results_and_pay_for_each_answer_once(
    first: int, tmp_path: Path, expected: list[Any]
) -> None:
    for seed in range(first, first + 20):
        check(seed, tmp_path / str(seed), expected)
