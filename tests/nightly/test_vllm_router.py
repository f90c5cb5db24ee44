"""vLLM Router in front of simulated engines: the session header is obeyed, and an engine may go."""

import asyncio
from collections import Counter, defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.live.engines import vllm_router
from tests.support.sim_hosts import CHAT, STEPS, Host, up

from batch_agent import Backend, BatchAgent, Results, Tool
from batch_agent.sim import Script

AGENTS, CALLS = 60, 2


def engines() -> list[Host]:
    return [Host(STEPS, Script(tool_turns=CALLS, answer_tokens=4)) for _ in range(3)]


async def run(scratch: Path, hosts: list[Host], policy: str, *, is_killed: bool = False, **settings: Any) -> Results:
    calls = Counter[str]()

    @Tool.define(effect="write")
    async def look(it: str = "") -> str:
        """Looks it up."""
        calls["look"] += 1
        if is_killed and calls["look"] == AGENTS:
            hosts[0].kill()
        return "seen"

    with ExitStack() as stack:  # in a thread: the router asks the engines, which are in this loop
        urls = [host.url for host in hosts]
        url = await asyncio.to_thread(stack.enter_context, vllm_router(scratch, urls, policy))
        results: Results = await BatchAgent.run(
            task="Look at {it}",
            inputs=[f"case {number:03}" for number in range(AGENTS)],
            tools=[look],
            backend=Backend(f"{url}/v1", **settings),
            progress=False,
            max_inflight=8,
        )
    assert calls["look"] == AGENTS * CALLS
    return results


def engines_of(hosts: list[Host]) -> dict[str, set[int]]:
    found = defaultdict[str, set[int]](set)
    for index, host in enumerate(hosts):
        for path, body in host.posts:
            if path == CHAT and "case" in (text := str(body["messages"])):
                found[text[text.find("case") :][:8]].add(index)
    return found


async def test_the_session_header_keeps_the_turns_of_an_agent_at_one_engine(tmp_path: Path) -> None:
    hosts = engines()
    async with up(*hosts):
        results = await run(tmp_path, hosts, "consistent_hash", session_header="X-Session-ID")
    assert all(result.ok for result in results)
    assert {len(engines) for engines in engines_of(hosts).values()} == {1}
    assert all(host.requests() for host in hosts)


@pytest.mark.parametrize("policy", ["round_robin", "cache_aware", "power_of_two"])
async def test_the_header_is_harmless_with_other_policies(tmp_path: Path, policy: str) -> None:
    hosts = engines()
    async with up(*hosts):
        assert all(result.ok for result in await run(tmp_path, hosts, policy, session_header="X-Session-ID"))


async def test_an_engine_that_goes_costs_no_result_and_repeats_no_call(tmp_path: Path) -> None:
    hosts = engines()
    async with up(*hosts):
        results = await run(tmp_path, hosts, "consistent_hash", is_killed=True, session_header="X-Session-ID")
    assert [result.error for result in results if not result.ok] == []
