"""Contexts of waiting agents on a real vLLM with a small KV cache, without and with the plugin batch-agent-vllm.

    vllm serve MODEL --num-gpu-blocks-override 100 --block-size 32 --enable-prompt-tokens-details ...   # twice
    python -m benchmarks.kv_hints_vllm http://127.0.0.1:8000 http://127.0.0.1:8001

Agents call a tool, and while they wait, another client sends more prompts than the cache holds. The model's first reply
is replaced by the call; what it says after the tool has returned is its own, and must be the same on both servers.
"""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp

from batch_agent import BatchAgent, Tool
from batch_agent.backends.connect import connect
from batch_agent.backends.http_backend import HttpBackend
from batch_agent.core.messages import ToolCall
from batch_agent.core.protocols.backend import ServerLoad
from batch_agent.core.requests import CallDelta, ContextHint, Delta, Exchange, Finished, Request
from benchmarks import report

AGENTS = 4
OTHERS = 11
SYSTEM = "You keep the register of a small harbour, and you answer in one short sentence."


@dataclass(frozen=True, slots=True)
class Outcome:
    returned_prompt_tokens: int
    """Of the turns after the tool."""
    returned_cached_tokens: int
    returned_seconds: float
    outputs: tuple[str, ...]


async def run(url: str, agents: int = AGENTS, others: int = OTHERS) -> Outcome:
    exchanges: list[Exchange] = []
    backend = await connect(url, None, uses_tools=True, notify=print, observe=exchanges.append)
    assert isinstance(backend, HttpBackend)
    waiting, may_return = 0, asyncio.Event()

    @Tool.define(effect="read")
    async def look_up(ship: str) -> str:
        """Look a ship up."""
        nonlocal waiting
        waiting += 1
        if waiting == agents:
            await evict(url, backend.traits.model, others)
            may_return.set()
        await may_return.wait()
        return f"Ship {ship} has berth 36."

    try:
        results = await BatchAgent.run(
            task="{text} Which berth does the ship have?",
            inputs=[{"text": _text(f"ship{number}")} for number in range(agents)],
            system_prompt=SYSTEM,
            tools=[look_up],
            backend=_FirstCall(backend),
            max_turns=2,
            max_tokens=12,
            temperature=0.0,
            timeout_per_tool=None,
        )
    finally:
        await backend.aclose()
    assert all(result.ok for result in results), [result.error for result in results]
    returned = [each for each in exchanges if each.request.turn == 1 and each.usage is not None]
    return Outcome(
        sum(each.usage.input for each in returned if each.usage),
        sum(each.usage.cached for each in returned if each.usage),
        round(sum(each.seconds for each in returned), 2),
        tuple(str(result.output) for result in results),
    )


async def evict(url: str, model: str, requests: int) -> None:
    """Another client's prompts, one after the other, each new to the server."""
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        for number in range(requests):
            body = {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": _text(f"other{number}")}]}
            async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                await response.read()


def _text(subject: str) -> str:
    return f"About {subject}: " + " ".join(f"{subject} has {part} crates." for part in range(32))


class _FirstCall:
    """Backend whose agents all call the tool in their first turn, whatever the model says."""

    def __init__(self, inner: HttpBackend) -> None:
        self.traits = inner.traits
        self._inner = inner

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[Delta]]:
        async with self._inner.stream(request) as deltas, aclosing(self._replaced(request, deltas)) as replaced:
            yield replaced

    async def hint(self, hint: ContextHint) -> None:
        await self._inner.hint(hint)

    async def load(self) -> ServerLoad | None:
        return await self._inner.load()

    async def leave(self, agent: str) -> None:
        await self._inner.leave(agent)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _replaced(self, request: Request, deltas: AsyncIterator[Delta]) -> AsyncGenerator[Delta]:
        async for delta in deltas:
            if request.turn > 0:
                yield delta
            elif isinstance(delta, Finished):
                yield CallDelta(ToolCall("call-1", "look_up", f'{{"ship": "{request.index}"}}'))
                yield Finished("calls", delta.usage)


def main(plain: str, with_plugin: str) -> None:
    numbers: dict[str, Any] = {"agents": AGENTS, "others": OTHERS}
    for name, url in (("plain", plain), ("plugin", with_plugin)):
        started = time.perf_counter()
        outcome = asyncio.run(run(url.rstrip("/")))
        numbers[name] = {**asdict(outcome), "wall_s": round(time.perf_counter() - started, 1)}
        print(name, numbers[name], flush=True)
    numbers["same_outputs"] = numbers["plain"].pop("outputs") == numbers["plugin"].pop("outputs")
    print(report.write("kv_hints_vllm", numbers))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
