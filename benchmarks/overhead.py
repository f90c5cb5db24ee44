"""What one agent costs the client: single-turn agents on a zero-latency server, beside plain gather loops.

    python -m benchmarks.overhead

Peers: a gather loop on aiohttp as a user writes it (json=, resp.json(), a semaphore), and an expert's (orjson, bytes).
Each measurement is a process of its own, taken in turns; ratios are of medians.
"""

import asyncio
import json
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import orjson

from batch_agent import BatchAgent
from batch_agent.sim import Script, SimConfig, SimServer
from benchmarks import report
from benchmarks.rounds import in_own_process, median_of

INFLIGHT = 64
SYSTEM = "You are a careful reviewer. " * 20
ROUNDS = 5
PEERS = ("gather", "gather_orjson", "batch_agent")


def text(index: int) -> str:
    return f"Review item {index}: is it in order?"


def body(index: int) -> dict[str, Any]:
    return {
        "model": "sim",
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text(index)}],
    }


async def gather(url: str, agents: int) -> int:
    room = asyncio.Semaphore(INFLIGHT)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one(index: int) -> str:
            async with room, session.post(f"{url}/v1/chat/completions", json=body(index)) as response:
                answer = await response.json()
                return str(answer["choices"][0]["message"]["content"])

        return sum(map(bool, await asyncio.gather(*(one(index) for index in range(agents)))))


async def gather_orjson(url: str, agents: int) -> int:
    room = asyncio.Semaphore(INFLIGHT)
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:

        async def one(index: int) -> str:
            data = orjson.dumps(body(index))
            async with room, session.post(f"{url}/v1/chat/completions", data=data) as response:
                answer = orjson.loads(await response.read())
                return str(answer["choices"][0]["message"]["content"])

        return sum(map(bool, await asyncio.gather(*(one(index) for index in range(agents)))))


async def batch_agent(url: str, agents: int) -> int:
    results = await BatchAgent.run(
        task="Review item {i}: is it in order?",
        system_prompt=SYSTEM,
        inputs=[{"i": index} for index in range(agents)],
        backend=url,
        model="sim",
        max_inflight=INFLIGHT,
    )
    return sum(result.ok for result in results)


def measure(peer: Callable[[str, int], Awaitable[int]], url: str, agents: int) -> dict[str, float]:
    """One warm-up of 200 agents, then the run that counts."""

    async def both() -> tuple[float, float, int]:
        await peer(url, 200)
        cpu, wall = time.process_time(), time.perf_counter()
        good = await peer(url, agents)
        return time.process_time() - cpu, time.perf_counter() - wall, good

    cpu, wall, good = asyncio.run(both())
    if good != agents:
        raise SystemExit(f"{agents - good} of {agents} agents failed")
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"cpu_us_per_agent": cpu / agents * 1e6, "wall_s": wall, "peak_mb": peak_mb}


def main() -> None:
    with SimServer(SimConfig(zero_latency=True, prefix_caching=False), Script()) as sim:
        rounds: dict[str, list[dict[str, float]]] = {peer: [] for peer in PEERS}
        for _ in range(ROUNDS):
            for peer in PEERS:
                rounds[peer].append(in_own_process("overhead", peer, sim.url, "2000"))
        peers = {peer: median_of(taken) for peer, taken in rounds.items()}
        sizes: dict[int, list[dict[str, float]]] = {size: [] for size in (500, 2000, 10_000)}
        for _ in range(3):
            for size, taken in sizes.items():
                taken.append(in_own_process("overhead", "batch_agent", sim.url, str(size)))
        growth = {size: median_of(taken) for size, taken in sizes.items()}
    ours = peers["batch_agent"]
    ratios = {
        f"{measured}_vs_{peer}": round(ours[measured] / peers[peer][measured], 3)
        for peer in PEERS[:-1]
        for measured in ("cpu_us_per_agent", "wall_s")
    }
    costs = [growth[size]["cpu_us_per_agent"] for size in growth]
    numbers = {
        "agents": 2000,
        "inflight": INFLIGHT,
        "rounds": ROUNDS,
        "peers": peers,
        "ratios": ratios,
        "by_number_of_agents": growth,
        "cost_spread_500_to_10000": round(max(costs) / min(costs) - 1, 3),
        "peak_mb_at_10000": growth[10_000]["peak_mb"],
        "all_rounds": rounds,
    }
    print(json.dumps({name: value for name, value in numbers.items() if name != "all_rounds"}, indent=2))
    print(report.write("overhead", numbers))


if __name__ == "__main__":
    if len(sys.argv) == 4:
        chosen = {"gather": gather, "gather_orjson": gather_orjson, "batch_agent": batch_agent}[sys.argv[1]]
        print(json.dumps(measure(chosen, sys.argv[2], int(sys.argv[3]))))
    else:
        main()
