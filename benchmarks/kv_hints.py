"""Cached tokens of agents that return from a tool, with and without the hints that each engine acts on.

    python -m scripts.engines.install sglang lmcache dynamo    # once
    python -m benchmarks.kv_hints [sglang_sessions sglang_priorities lmcache dynamo]

Real engines on the CPU, started one after the other. Six agents call a tool; while they wait, another client's requests
need more KV cache than the engine has; then the agents return. Their cached tokens are those that the engine reports.
What the model says is replaced, as in benchmarks/gpu. Dynamo's frontend and router are real, its workers are mockers.
Counts of tokens are exact; seconds depend on what else the machine does.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
from tests.live.engines import dynamo_server, sglang_server, vllm_server, vllm_with_lmcache

from batch_agent import BatchAgent, Tool
from batch_agent.backends.connect import connect
from batch_agent.core.protocols.backend import Backend
from batch_agent.core.requests import PRIORITY_STEP, Delta, Request
from benchmarks import report
from benchmarks.gpu.scenario import TOOL, Scene
from benchmarks.gpu.scripted_backend import Played
from benchmarks.gpu.token_texts import Words, nonce
from benchmarks.gpu.turn_recorder import Watch

AGENTS = 6
OWN_TOKENS = 180
SHARED_TOKENS = 60
OTHERS = 16
OTHERS_TOKENS = 180
OTHERS_OUTPUT = 4
"""More than one: SGLang ranks a prompt without an answer below any other."""
OTHERS_AT_ONCE = 4
OTHERS_LATER = 6
SGLANG_CACHE = ("--max-total-tokens", "2560")
VLLM_CACHE = ("--num-gpu-blocks-override", "80", "--max-model-len", "2048")
WORDS = Words()
Numbers = dict[str, Any]
Wrap = Callable[[Backend], Backend]


@dataclass
class Changed:
    """The same server with other requests: what it is told about agents is changed."""

    inner: Backend
    change: Callable[[Request], Request] = lambda request: request
    ends: bool = True
    """Whether it is told that an agent has ended."""

    def __post_init__(self) -> None:
        self.traits = self.inner.traits

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[Delta]]:
        return self.inner.stream(self.change(request))

    async def leave(self, agent: str) -> None:
        if self.ends:
            await self.inner.leave(agent)

    async def aclose(self) -> None:
        await self.inner.aclose()


def with_hints(backend: Backend) -> Backend:
    return backend


def without_hints(backend: Backend) -> Backend:
    return Changed(backend, lambda request: replace(request, agent="", priority=0))


def without_ends(backend: Backend) -> Backend:
    return Changed(backend, ends=False)


def with_rising_priorities(backend: Backend) -> Backend:
    """A higher priority in each turn, as for servers that only schedule by it."""
    return Changed(backend, lambda request: replace(request, priority=request.turn * PRIORITY_STEP))


@dataclass
class ToolWait:
    """A tool that returns once every agent has called it and the requests of others are answered."""

    agents: int
    others: Callable[[], Awaitable[object]]

    def __post_init__(self) -> None:
        self._waiting = 0
        self._done = asyncio.Event()

    async def __call__(self) -> None:
        self._waiting += 1
        if self._waiting == self.agents:
            await self.others()
            self._done.set()
        await self._done.wait()


async def run(backend: Backend, url: str, *, others: int = OTHERS) -> Numbers:
    """Two turns of each agent, with the requests of others between them."""
    start, watch = nonce(), Watch()
    scene = Scene(
        tasks=tuple(WORDS.own(number, start, "hints", OWN_TOKENS) for number in range(AGENTS)),
        turns=2,
        output=8,
        system=f"{start} {WORDS.text('hints', SHARED_TOKENS)}",
        said="Let me look.",
        result=WORDS.text("hints result", 20),
    )
    wait = ToolWait(AGENTS, lambda: ask_for_others(url, range(others), start))

    async def look_up(key: str) -> str:
        """Looks a key up."""
        await wait()
        watch.tool_done(key)
        return scene.result

    began = time.perf_counter()
    results = await BatchAgent.run(
        task="{it}",
        inputs=list(scene.tasks),
        system_prompt=scene.system,
        tools=[Tool.define(name=TOOL, effect="write")(look_up)],
        backend=Played(backend, scene, watch),
        streaming=True,
        kvflow=False,
        timeout_per_tool=None,
    )
    failed = [result.error.message for result in results if result.error is not None]
    assert not failed, failed
    later = [turn for turn in watch.turns if turn.turn == 1]
    assert len(later) == AGENTS
    return {
        "cached": sum(turn.usage.cached for turn in later),
        "prompt": sum(turn.usage.input for turn in later),
        "cached_by_agent": [turn.usage.cached for turn in sorted(later, key=lambda turn: turn.agent)],
        "wall_s": round(time.perf_counter() - began, 1),
    }


async def ask_for_others(url: str, numbers: range, start: str) -> int:
    """Requests of a client that sends no hints; returns how many of their tokens were cached."""
    places = asyncio.Semaphore(OTHERS_AT_ONCE)

    async def ask(session: aiohttp.ClientSession, number: int) -> int:
        said = WORDS.own(number + 1000, start, "others", OTHERS_TOKENS)
        body = {"model": "smollm2", "messages": [{"role": "user", "content": said}], "max_tokens": OTHERS_OUTPUT}
        async with places, session.post(f"{url}/v1/chat/completions", json=body) as response:
            usage = (await response.json())["usage"]
        return int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)

    async with aiohttp.ClientSession(raise_for_status=True) as session, asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(session, number)) for number in numbers]
    return sum(task.result() for task in tasks)


async def measure(url: str, wrap: Wrap, *, ended_before: bool = False, others_later: bool = False) -> Numbers:
    """`ended_before`: as many other agents have run to their end before. `others_later`: also what others' prompts find
    on their second request, once all agents have ended."""
    backend = await connect(url, None, uses_tools=False, notify=lambda text: None)
    try:
        if ended_before:
            await run(wrap(backend), url, others=0)
        numbers = await run(wrap(backend), url)
        if others_later:
            start = nonce()
            await ask_for_others(url, range(OTHERS_LATER), start)
            numbers["others_cached_later"] = await ask_for_others(url, range(OTHERS_LATER), start)
    finally:
        await backend.aclose()
    return numbers


async def flush(url: str) -> None:
    async with aiohttp.ClientSession(raise_for_status=True) as session, session.post(f"{url}/flush_cache") as response:
        await response.read()


async def sglang_sessions(scratch: Path) -> Numbers:
    with sglang_server(scratch, *SGLANG_CACHE) as url:
        found = {}
        for name, wrap in (("without", without_hints), ("without_ends", without_ends), ("with", with_hints)):
            await flush(url)
            found[name] = await measure(url, wrap, others_later=wrap is not without_hints)
        return found


async def sglang_priorities(scratch: Path) -> Numbers:
    with sglang_server(scratch, *SGLANG_CACHE, "--radix-eviction-policy", "priority", sessions=False) as url:
        found = {}
        for name, wrap in (("without", without_hints), ("rising", with_rising_priorities), ("with", with_hints)):
            await flush(url)
            found[name] = await measure(url, wrap, ended_before=True)
        return found


async def lmcache(scratch: Path) -> Numbers:
    found = {}
    for name, server in (("without", vllm_server), ("with", vllm_with_lmcache)):
        folder = scratch / name
        folder.mkdir()
        with server(folder, *VLLM_CACHE) as url:
            found[name] = await measure(url, with_hints)
    return found


async def dynamo(scratch: Path) -> Numbers:
    found: Numbers = {}
    affinity = ("--router-session-affinity-ttl-secs", "60")
    for router, options in (("kv", ()), ("kv", affinity), ("round-robin", affinity)):
        case = f"{router}{' with affinity' if options else ''}"
        folder = scratch / case.replace(" ", "-")
        folder.mkdir()
        with dynamo_server(folder, *options, workers=4, router=router) as url:
            ways = (("without", without_hints), ("with", with_hints))
            found[case] = {name: [await measure(url, wrap) for _ in range(3)] for name, wrap in ways}
    return found


CASES = {case.__name__: case for case in (sglang_sessions, sglang_priorities, lmcache, dynamo)}


def main(names: list[str]) -> None:
    path = report.RESULTS / "kv_hints.json"
    for name in names or CASES:
        with tempfile.TemporaryDirectory() as scratch:
            numbers = asyncio.run(CASES[name](Path(scratch)))
        print(name, json.dumps(numbers, indent=1), flush=True)
        earlier = json.loads(path.read_text())["cases"] if path.exists() else {}
        report.write("kv_hints", {"cases": earlier | {name: numbers}})


if __name__ == "__main__":
    main(sys.argv[1:])
