"""What a checkpoint costs: 2,000 two-turn agents with a tool, with and without `checkpoint_dir`, and resuming them.

    python -m benchmarks.checkpoint

Once on a server without latency, where all of the wall is the client's: the hardest case; and once on a simulated
engine with a quick model (2 ms a step, answers of 24 tokens). Each measurement is a process of its own, taken in turns;
ratios are of medians, and all rounds are kept.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from batch_agent import BatchAgent, Tool
from batch_agent.sim import Script, SimConfig, SimServer
from benchmarks import report
from benchmarks.rounds import in_own_process, median_of

AGENTS = 2_000
ROUNDS = 5
BASELINES = {"on": "off", "on, with writes": "off, with writes", "resume": "off"}
"""What each way is compared with: writes are executed for every agent, where reads are shared, with a checkpoint or
not."""
WAYS = ("off", "off, with writes", *BASELINES)


@Tool.define(effect="read")
async def look(key: str) -> str:
    """Look a key up."""
    return f"the value of {key}"


@Tool.define(name="look", effect="write")
async def write(key: str) -> str:
    """Look a key up."""
    return f"the value of {key}"


async def run(url: str, folder: Path | None, tool: Tool) -> int:
    results = await BatchAgent.run(
        task="Look up item {i}.",
        inputs=[{"i": index} for index in range(AGENTS)],
        tools=[tool],
        backend=url,
        model="sim",
        max_inflight=64,
        checkpoint_dir=folder,
    )
    return sum(result.ok and result.turns == 2 for result in results)


def measure(way: str, url: str) -> dict[str, float]:
    with TemporaryDirectory() as scratch:
        folder = None if way.startswith("off") else Path(scratch) / "run"
        tool = write if "writes" in way else look
        asyncio.run(run(url, Path(scratch) / "warm-up" if folder else None, tool))
        if way == "resume":
            asyncio.run(run(url, folder, tool))
        cpu, wall = time.process_time(), time.perf_counter()
        good = asyncio.run(run(url, folder, tool))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    if good != AGENTS:
        raise SystemExit(f"{AGENTS - good} of {AGENTS} agents did not take two turns")
    return {"cpu_us_per_agent": cpu / AGENTS * 1e6, "wall_s": wall}


def compare(config: SimConfig, count: int) -> dict[str, Any]:
    rounds: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with SimServer(config, Script(answer_tokens=24)) as sim:
        for _ in range(count):
            for way, taken in rounds.items():
                taken.append(in_own_process("checkpoint", way, sim.url))
    medians = {way: median_of(taken) for way, taken in rounds.items()}
    against_off = {
        way: {name: round(medians[way][name] / medians[off][name], 3) for name in medians[off]}
        for way, off in BASELINES.items()
    }
    return {"medians": medians, "against_off": against_off, "all_rounds": rounds}


def main() -> None:
    no_latency = SimConfig(zero_latency=True, prefix_caching=False)
    quick_model = SimConfig(step_base_ms=2.0, step_us_per_seq=5.0, prefill_us_per_token=5.0, step_ns_per_kv_token=10.0)
    numbers = {
        "agents": AGENTS,
        "no_latency": compare(no_latency, ROUNDS),
        "quick_model": compare(quick_model, 3),
    }
    for name in ("no_latency", "quick_model"):
        print(name, json.dumps({key: numbers[name][key] for key in ("medians", "against_off")}, indent=2))  # type: ignore[index]
    print(report.write("checkpoint", numbers))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(measure(sys.argv[1], sys.argv[2])))
    else:
        main()
