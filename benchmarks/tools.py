"""What sharing tool executions saves, and what it costs.

    python -m benchmarks.tools

Four workloads, each against the same tools without sharing (effect="write"), on a scripted model that answers at once:
documents read by many agents, a slow tool with few keys, look-ups that become one query, and the price of a cache hit.
"""

import asyncio
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from batch_agent import BatchAgent, Tool
from batch_agent.core.events import Event, ToolsUsed
from batch_agent.core.messages import ToolCall, User
from batch_agent.core.requests import Request
from batch_agent.core.results import ToolUse
from batch_agent.testing import Answer, ScriptedBackend, calls, say
from batch_agent.tools import ToolExecutor, read_file_tool
from benchmarks import report


class Uses:
    """Keeps the account of the tools."""

    def __init__(self) -> None:
        self.tools: tuple[ToolUse, ...] = ()

    def emit(self, event: Event) -> None:
        if isinstance(event, ToolsUsed):
            self.tools = event.tools


async def batch(agents: int, tool: Tool, wanted: Any) -> dict[str, Any]:
    """`wanted(agent)` are the calls of an agent's one turn with tools."""

    def answer(request: Request) -> Answer:
        first = request.messages[0]
        assert isinstance(first, User)
        return calls(*wanted(int(first.text))) if len(request.messages) == 1 else say("done")

    uses, started = Uses(), time.perf_counter()
    results = await BatchAgent.run(
        task="{it}",
        inputs=[str(number) for number in range(agents)],
        tools=[tool],
        backend=ScriptedBackend(answer, inflight=1024),
        events=uses,
    )
    assert all(result.ok for result in results)
    [use] = uses.tools
    return {
        "wall_s": round(time.perf_counter() - started, 3),
        "requested": use.requested,
        "executed": use.executed,
        "shared": use.shared,
        "cached": use.cached,
        "failed": use.failed,
        "tool_seconds": round(use.seconds, 3),
    }


async def documents(folder: Path) -> dict[str, Any]:
    """100 agents x 10 shared documents."""
    for number in range(10):
        (folder / f"{number}.txt").write_text(f"Document {number}. " * 400)

    def wanted(agent: int) -> list[ToolCall]:
        return [ToolCall(f"c{n}", "read_file", f'{{"path": "{n}.txt"}}') for n in range(10)]

    shared = read_file_tool(folder)
    alone = Tool.define(name="read_file")(shared.function)
    return {"shared": await batch(100, shared, wanted), "alone": await batch(100, alone, wanted)}


async def slow_tool() -> dict[str, Any]:
    """1,000 agents, 10 keys, a tool of 200 ms."""

    async def look(key: str) -> str:
        await asyncio.sleep(0.2)
        return key

    def wanted(agent: int) -> list[ToolCall]:
        return [ToolCall("c", "look", f'{{"key": "k{agent % 10}"}}')]

    shared, alone = Tool.define(effect="read")(look), Tool.define(look)
    return {"shared": await batch(1000, shared, wanted), "alone": await batch(1000, alone, wanted)}


async def look_ups() -> dict[str, Any]:
    """30 agents that each look one id up: one call of the batch function."""
    queries: list[int] = []

    @Tool.batchable(key_arg="id", window=0.01)
    async def get_user(ids: list[int]) -> dict[int, str]:
        queries.append(len(ids))
        return {each: f"user {each}" for each in ids}

    result = await batch(30, get_user, lambda agent: [ToolCall("c", "get_user", f'{{"id": {agent}}}')])
    return {**result, "queries": len(queries)}


async def cache_hit(rounds: int = 7, hits: int = 2_000) -> dict[str, Any]:
    """Microseconds for a call that is answered from memory, validation of its arguments included."""

    async def look(key: str, depth: int = 3) -> str:
        return key * 100

    fabric = ToolExecutor([Tool.define(effect="pure")(look)], timeout=10, max_tokens=8000)
    session = fabric.session("agent")
    call = ToolCall("c", "look", '{"key": "some key"}')
    await session.results([call])
    times = []
    for _ in range(rounds):
        started = time.process_time()
        for _ in range(hits):
            await session.results([call])
        times.append((time.process_time() - started) / hits * 1e6)
    await fabric.aclose()
    return {"cpu_us_median": round(statistics.median(times), 2), "cpu_us": [round(each, 2) for each in times]}


async def measure() -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        return {
            "documents_100_agents_x_10": await documents(Path(folder)),
            "slow_tool_1000_agents_10_keys_200ms": await slow_tool(),
            "look_ups_30": await look_ups(),
            "cache_hit": await cache_hit(),
        }


if __name__ == "__main__":
    path = report.write("tools", asyncio.run(measure()))
    print(path.read_text(), path, sep="")
