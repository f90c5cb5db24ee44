"""Keep-warm requests on a server with time to spare, while prompts of others turn its KV cache over."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import aiohttp

from .kv_tiers import Run, Way, in_turns, ours, scaled
from .scenario import Scene, between
from .token_texts import nonce
from .turn_recorder import spread
from .workloads import Sizes, Stage, scene_of

SIZES = Sizes(agents=24, turns=4, shared=2_000, own=6_000, output=64, result=150)
TOOL_SECONDS = 2.0, 20.0
OTHERS_PER_SECOND, OTHERS_TOKENS, OTHERS_OUTPUT = 6.0, 2_000, 16
"""A third of the prefill speed of an H200: a context is evicted after about ten seconds."""
_SECONDS = 62.0
ROUND_SECONDS = 2 * _SECONDS


@dataclass(slots=True)
class Others:
    """Requests of others: prompts that share nothing and are asked once."""

    waits: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


async def keep_warm(stage: Stage, part: str = "kv_keep_warm") -> None:
    """The same agents without keep-warm requests and with them (`kvflow=True`)."""
    ways = {
        "off": Way(_among_others(ours(timeout_per_tool=None)), _SECONDS),
        "on": Way(_among_others(ours(timeout_per_tool=None, kvflow=True)), _SECONDS),
    }
    await in_turns(stage, part, ways, partial(_scene, stage, part), SIZES)


def _scene(stage: Stage, part: str) -> Scene:
    least, most = (each * stage.scale.seconds for each in TOOL_SECONDS)
    return scene_of(stage.words, scaled(stage, SIZES), part, seconds=between(least, most))


def _among_others(alone: Run) -> Run:
    async def run(stage: Stage, scene: Scene, limit: float, traced: bool) -> dict[str, Any]:
        async with _others(stage) as others:
            numbers = await alone(stage, scene, limit, traced)
        kept = (numbers["engine"]["scheduling"] or {}).get("keep_warm") or {}
        return {
            **numbers,
            "keep_warm_tokens": kept.get("tokens", 0),
            "others": {
                "answered": len(others.waits),
                "seconds": spread(others.waits),
                "failed": len(others.failures),
                "failures": others.failures[:3],
            },
        }

    return run


@asynccontextmanager
async def _others(stage: Stage) -> AsyncIterator[Others]:
    others = Others()
    timeout = aiohttp.ClientTimeout(total=120)
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session,
        asyncio.TaskGroup() as group,
    ):
        arrivals = group.create_task(_arrive(stage, session, others))
        try:
            yield others
        finally:
            arrivals.cancel()


async def _arrive(stage: Stage, session: aiohttp.ClientSession, others: Others) -> None:
    """At random times, the same for every run."""
    random, start = Random("arrivals"), nonce()
    per_second = OTHERS_PER_SECOND * stage.scale.agents / stage.scale.seconds
    async with asyncio.TaskGroup() as group:
        for number in range(9_000):
            await asyncio.sleep(random.expovariate(per_second))
            text = stage.words.own(number, start, "others", stage.scale.of_tokens(OTHERS_TOKENS))
            group.create_task(_ask(stage, session, text, others))


async def _ask(stage: Stage, session: aiohttp.ClientSession, text: str, others: Others) -> None:
    messages = [{"role": "user", "content": text}]
    body = {"model": stage.server.model, "messages": messages, "max_tokens": OTHERS_OUTPUT, "ignore_eos": True}
    sent = time.perf_counter()
    try:
        async with session.post(f"{stage.server.url}/v1/chat/completions", json=body) as response:
            response.raise_for_status()
            await response.read()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        others.failures.append(f"{type(error).__name__}: {error}")
    else:
        others.waits.append(time.perf_counter() - sent)
