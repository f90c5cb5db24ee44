"""Whole runs against the simulated engine in its own process: every fault is survived, and named where it is not."""

import asyncio
import json
from typing import Any, Literal

import pytest

from batch_agent import BatchAgent, ErrorKind, Tool
from batch_agent.sim import SimServer

both = pytest.mark.parametrize("streaming", [False, True], ids=["plain", "streamed"])


def order(*directives: Any) -> str:
    return f"Do it. [[sim: {json.dumps(list(directives))}]]"


@both
async def test_an_agent_survives_each_temporary_server_fault(sim: SimServer, streaming: bool) -> None:
    faults: list[dict[str, Any]] = [
        {"fault": "500"},
        {"fault": "503"},
        {"fault": "429", "retry_after_s": 0.05},
        {"fault": "reset"},
        {"fault": "garbage"},
        {"fault": "truncated"},
    ]
    tasks = [order({"text": f"answer {n} {streaming}", "times": 1, **fault}) for n, fault in enumerate(faults)]
    results = await BatchAgent.run(task="{it}", inputs=tasks, backend=sim.url, streaming=streaming, backoff=0.01)
    assert [result.text for result in results] == [f"answer {n} {streaming}" for n in range(len(faults))]


@both
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("400", ErrorKind.BAD_REQUEST),
        ("404", ErrorKind.NOT_FOUND),
        ("500", ErrorKind.SERVER),
        ("reset", ErrorKind.CONNECTION),
        ("garbage", ErrorKind.SERVER),
        ("truncated", ErrorKind.CONNECTION),
    ],
)
async def test_a_permanent_server_fault_is_named_in_the_error(
    sim: SimServer, streaming: bool, fault: str, kind: ErrorKind
) -> None:
    [result] = await BatchAgent.run(
        task="{it}", inputs=[order({"fault": fault})], backend=sim.url, streaming=streaming, max_retries=1, backoff=0.01
    )
    assert result.error is not None
    assert result.error.kind is kind


@both
async def test_a_server_that_stalls_past_the_turn_timeout_is_a_turn_timeout_error(
    sim: SimServer, streaming: bool
) -> None:
    [result] = await BatchAgent.run(
        task="{it}",
        inputs=[order({"fault": "stall", "stall_s": 20})],
        backend=sim.url,
        streaming=streaming,
        timeout_per_turn=0.2,
        max_retries=0,
    )
    assert result.error is not None
    assert result.error.kind is ErrorKind.TURN_TIMEOUT


async def test_a_conversation_beyond_the_window_is_a_context_overflow(sim: SimServer) -> None:
    [result] = await BatchAgent.run(task="{it}", inputs=["word " * 40_000], backend=sim.url)
    assert result.error is not None
    assert result.error.kind is ErrorKind.CONTEXT_OVERFLOW


@both
@pytest.mark.parametrize("tool_mode", ["native", "action"])
async def test_parallel_agents_use_their_tools_and_follow_the_schema(
    sim: SimServer, streaming: bool, tool_mode: Literal["native", "action"]
) -> None:
    asked: list[str] = []

    @Tool.define
    async def look(key: str) -> dict[str, str]:
        """Look a key up.

        Args:
            key: what to look up
        """
        asked.append(key)
        await asyncio.sleep(0)
        return {"found": key}

    results = await BatchAgent.run(
        task="Look {it} up",
        inputs=[f"thing {n}" for n in range(20)],
        tools=[look],
        output_schema=dict[str, int],
        backend=sim.url,
        tool_mode=tool_mode,
        streaming=streaming,
    )
    assert [str(result.error) for result in results if not result.ok] == []
    assert len(asked) == 20
    assert all(result.turns == 2 and result.usage.input > 0 for result in results)
    assert all((result.timing.ttft[0] is not None) == streaming for result in results)
