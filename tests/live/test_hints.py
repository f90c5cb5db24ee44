"""Hints about agents on real engines, and what a run says of an engine that dies under it."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.kv_hints import AGENTS, measure, with_hints
from tests.live.engines import dynamo_server, vllm_server

from batch_agent import BatchAgent, RunStopped

CONTEXT = 256
"""Tokens of an agent's first turn, in whole blocks."""


@pytest.fixture
def affine_dynamo(tmp_path: Path) -> Iterator[str]:
    """A router that looks at nothing but the session: its workers share no cache."""
    options = ("--router-session-affinity-ttl-secs", "60")
    with dynamo_server(tmp_path, *options, workers=4, router="round-robin") as url:
        yield url


async def test_dynamo_sends_an_agent_that_returns_to_the_worker_with_its_context(affine_dynamo: str) -> None:
    numbers = await measure(affine_dynamo, with_hints)
    assert numbers["cached_by_agent"] == [CONTEXT] * AGENTS


@pytest.mark.nightly
async def test_the_error_of_a_run_says_that_vllms_engine_died(tmp_path: Path) -> None:
    with vllm_server(tmp_path, tools=False) as url:

        async def answered_once() -> None:
            async for _ in BatchAgent.stream(task="{it}", inputs=stories("first", 1), backend=url, max_tokens=1):
                os.kill(_engine_process(tmp_path / "vllm.log"), signal.SIGKILL)

        async with asyncio.TaskGroup() as group:
            run = group.create_task(_stopped(url))
            group.create_task(answered_once())
    assert "the engine has died, and the server has to be restarted" in str(run.result())


async def _stopped(url: str) -> RunStopped:
    with pytest.raises(RunStopped) as stopped:
        await BatchAgent.run(
            task="{it}", inputs=stories("second", 8), backend=url, max_tokens=2000, max_retries=1, extra=ENDLESS
        )
    return stopped.value


ENDLESS = {"ignore_eos": True}


def stories(name: str, count: int) -> list[str]:
    return [f"Write the {name} story, of number {number}." for number in range(count)]


def _engine_process(log: Path) -> int:
    """The process id with which the engine signs its lines."""
    line = next(line for line in log.read_text().splitlines() if "(EngineCore pid=" in line)
    return int(line.partition("(EngineCore pid=")[2].partition(")")[0])
