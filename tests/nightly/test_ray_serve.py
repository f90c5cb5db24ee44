"""Ray Serve with two replicas in front of a simulated engine: a replica may be killed."""

import asyncio
import os
import signal
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.live.engines import ray_serve
from tests.support.sim_hosts import STEPS, Host, up

from batch_agent import Backend, BatchAgent, Tool
from batch_agent.sim import Script

AGENTS, CALLS = 60, 2


async def test_a_killed_replica_costs_no_result_and_repeats_no_call(tmp_path: Path) -> None:
    calls, killed, host = Counter[str](), list[int](), Host(STEPS, Script(tool_turns=CALLS, answer_tokens=4))
    async with up(host):
        with ExitStack() as stack:  # in a thread: the replicas ask the engine, which is in this loop
            url, replicas = await asyncio.to_thread(stack.enter_context, ray_serve(tmp_path, host.url))

            @Tool.define(effect="write")
            async def look(it: str = "") -> str:
                """Looks it up."""
                calls["look"] += 1
                if calls["look"] == AGENTS:
                    killed.append(int(next(replicas.iterdir()).name))
                    os.kill(killed[0], signal.SIGKILL)
                return "seen"

            results = await BatchAgent.run(
                task="Look at {it}",
                inputs=[f"case {number:03}" for number in range(AGENTS)],
                tools=[look],
                backend=Backend(f"{url}/v1"),
                progress=False,
                max_inflight=8,
            )
    assert len(killed) == 1
    assert [result.error for result in results if not result.ok] == []
    assert calls["look"] == AGENTS * CALLS
