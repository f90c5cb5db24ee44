"""Compaction on a real server with a small window: what is estimated here is counted there."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batch_agent import AgentResult, BatchAgent, ErrorKind, Tool
from batch_agent.core.results import Timing
from batch_agent.sim import Script, SimConfig, SimServer

TURNS = 12


@pytest.fixture(scope="module")
def small() -> Iterator[SimServer]:
    config = SimConfig(max_model_len=2_048, zero_latency=True)
    with SimServer(config, Script(tool_turns=TURNS - 1, answer_tokens=20)) as server:
        yield server


@Tool.define(effect="read")
async def read(key: str) -> str:
    """Reads a chapter."""
    return f"{key}: ünd so weiter. " * 60


async def run(server: SimServer, **options: Any) -> list[AgentResult]:
    results: list[AgentResult] = await BatchAgent.run(
        task="Read {it}.", inputs=list("abcdef"), tools=[read], backend=server.url, max_turns=TURNS, **options
    )
    return results


def timeless(results: list[AgentResult]) -> list[AgentResult]:
    return [replace(each, timing=Timing(), usage=replace(each.usage, cached=0)) for each in results]


@pytest.mark.parametrize("mode", ["native", "action"])
async def test_without_compaction_the_server_refuses_what_does_not_fit(small: SimServer, mode: str) -> None:
    results = await run(small, compact_at=None, tool_mode=mode)
    assert {result.error.kind for result in results if result.error} == {ErrorKind.CONTEXT_OVERFLOW}
    assert not any(result.ok for result in results)


@pytest.mark.parametrize("mode", ["native", "action"])
@pytest.mark.parametrize("way", ["elide", "summarize"])
async def test_with_compaction_all_agents_finish(small: SimServer, mode: str, way: str) -> None:
    results = await run(small, compact_with=way, tool_mode=mode)
    assert [result.error for result in results] == [None] * 6
    assert all(result.turns == TURNS and result.compactions >= 2 for result in results)


@pytest.mark.parametrize("way", ["elide", "summarize"])
async def test_a_compacted_run_is_resumed_and_replayed_unchanged(small: SimServer, tmp_path: Path, way: str) -> None:
    first = await run(small, compact_with=way, checkpoint_dir=tmp_path)
    again = await run(small, compact_with=way, checkpoint_dir=tmp_path)
    assert timeless(again) == timeless(first)
    assert timeless(await BatchAgent.replay(tmp_path)) == timeless(first)
