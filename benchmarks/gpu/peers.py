"""Agents of one turn, by BatchAgent and by loops that people write: each client a process of its own, in turns.

Frameworks take no part: what they need comes from a package index, which machines with such a GPU may not reach. Nor
does httpx, whose loop takes four times as long as the others together. `benchmarks.peers` has them all, on simulated
engines.
"""

import asyncio
import json
import re
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from subprocess import PIPE
from typing import IO

import aiohttp

from ..peers.environments import ROOT, python_of, words_of
from ..peers.rounds import medians
from ..peers.runs import Broken, Numbers
from ..peers.work import Work
from .server_info import Server
from .workloads import Stage

CLIENTS = ("batch_agent", "expert", "gather")
ROUNDS = 3
BASE = "expert"
_AGENTS, _INFLIGHT, _OUTPUT = 2_000, 256, 64
_WAYS = {"whole": False, "streamed": True}
_ABSENT = "frameworks: there was no network to install them from; httpx: a run of it takes 40 s"
_SUCCESSES = re.compile(r"^vllm:request_success_total(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)
_LAST_LINES = 12


async def peers(stage: Stage, clients: Sequence[str] = CLIENTS, rounds: int = ROUNDS) -> None:
    """Answers that come whole, then streamed ones: of one length, to prompts that the server has seen before."""
    server, agents = stage.server, stage.scale.of_agents(_AGENTS)
    sizes = {"agents": agents, "inflight": _INFLIGHT, "output": _OUTPUT, "left_out": _ABSENT}
    stage.notes.put({**await server.about(), **sizes}, "peers", "setup")
    asked = Work((server.url,), agents, _INFLIGHT, model=server.model, answer_tokens=_OUTPUT)
    taken: dict[str, dict[str, list[Numbers]]] = {way: {client: [] for client in clients} for way in _WAYS}
    await _run(stage, BASE, asked)
    for round_ in range(rounds):
        first = round_ % len(clients)
        for way, is_streamed in _WAYS.items():
            for client in (*clients[first:], *clients[:first]):
                one = await _run(stage, client, replace(asked, is_streamed=is_streamed))
                taken[way][client].append(one)
                stage.notes.put(one, "peers", way, client, f"round_{round_}")
    for way, by_client in taken.items():
        stage.notes.put(_compared(by_client), "peers", way, "medians")


def _compared(taken: dict[str, list[Numbers]]) -> dict[str, Numbers]:
    """Medians, with what they are times those of the expert's loop."""
    found = {client: medians(rounds) for client, rounds in taken.items()}
    base = found[BASE]
    for one in found.values():
        one |= {f"{name}_times_expert": round(one[f"{name}_s"] / base[f"{name}_s"], 3) for name in ("wall", "cpu")}
    return found


async def _run(stage: Stage, client: str, work: Work) -> Numbers:
    """What one run of a client costs, what it brings, and what the server counted meanwhile. Raises Broken."""
    async with asyncio.timeout(stage.limit), _started(client, work) as (process, errors):
        await _heard(process, errors)
        before = await _counted(stage.server)
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        told = await _heard(process, errors)
        after = await _counted(stage.server)
    counted = {name: round(after[name] - before[name]) for name in after}
    rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in told.items()}
    return {
        **rounded,
        "cpu_us_per_agent": round(told["cpu_s"] / work.agents * 1e6, 1),
        "requests": counted["requests"],
        "cached_share": round(counted["prefix_cache_hits"] / max(counted["prefix_cache_queries"], 1), 4),
        "prompt_tokens": counted["prompt_tokens"],
        "generation_tokens": counted["generation_tokens"],
    }


@asynccontextmanager
async def _started(client: str, work: Work) -> AsyncIterator[tuple[asyncio.subprocess.Process, IO[str]]]:
    """`benchmarks.peers.peer_process`, in the client's environment; it is gone when the block ends."""
    python = await asyncio.to_thread(python_of, client)
    words = [str(python), "-m", "benchmarks.peers.peer_process", client, work.to_json()]
    with tempfile.TemporaryFile("w+") as errors:
        process = await asyncio.create_subprocess_exec(
            *words, cwd=ROOT, env=words_of(client), stdin=PIPE, stdout=PIPE, stderr=errors
        )
        try:
            yield process, errors
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _heard(process: asyncio.subprocess.Process, errors: IO[str]) -> Numbers:
    """The next line that is JSON: libraries print on their own, too."""
    assert process.stdout is not None
    async for line in process.stdout:
        if line.startswith(b"{"):
            numbers: Numbers = json.loads(line)
            return numbers
    errors.seek(0)
    last = errors.read().strip().splitlines()[-_LAST_LINES:]
    raise Broken("\n".join(last) or f"ended with {await process.wait()}")


async def _counted(server: Server) -> dict[str, float]:
    async with aiohttp.request("GET", f"{server.url}/metrics") as response:
        finished = _SUCCESSES.findall(await response.text())
    return {**await server.counters(), "requests": sum(map(float, finished))}
