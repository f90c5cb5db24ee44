"""What it costs to watch a run: agents of two turns and a tool call on a zero-latency server, with and without views.

    python -m benchmarks.observability

Each measurement is a process of its own, taken in turns; ratios are of medians. CPU is that of the whole process, the
thread of the views included; the server is another one. A zero-latency server is the worst case: a run that waits for a
model has time for all of this. `log` has the report at its end; `checkpoint` is the log and every fact written down.
"""

import asyncio
import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry
from rich.console import Console

from batch_agent import BatchAgent, Metrics, Tool, Traces
from batch_agent.observe.event_recorder import EventRecorder
from batch_agent.observe.live.state import LiveState
from batch_agent.observe.live.terminal import LiveProgress
from batch_agent.sim import Script, SimConfig, SimServer
from benchmarks import report
from benchmarks.rounds import in_own_process, median_of

AGENTS = 2000
WARM_UP = 200
ROUNDS = 5
INFLIGHT = 64
SYSTEM = "You are a careful reviewer. " * 20


@Tool.define(effect="pure")
async def look_up(key: str) -> str:
    """Look a number up."""
    return f"about {key}"


def _sdk(*, content: bool = False) -> list[Any]:
    """The queue is long enough for all: spans that are dropped cost nothing."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter(), max_queue_size=100_000))
    return [Traces(provider, content=content)]


def _dashboard() -> LiveProgress:
    """On a pseudo-terminal of 120 by 40, whose output another process reads."""
    master, slave = pty.openpty()
    subprocess.run(["stty", "rows", "40", "cols", "120"], stdin=slave, check=True)
    subprocess.Popen(["cat"], stdin=master, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # ends with us
    os.close(master)
    return LiveProgress(Console(file=os.fdopen(slave, "w"), force_terminal=True, color_system="256"))


WAYS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "none": lambda _: {"progress": False},
    "state": lambda _: {"events": [LiveState()]},
    "dashboard": lambda _: {"events": [_dashboard()]},
    "log": lambda folder: {"events": [EventRecorder(folder)]},
    "metrics": lambda _: {"events": [Metrics(registry=CollectorRegistry())]},
    "traces_api_only": lambda _: {"events": [Traces()]},
    "traces_sdk": lambda _: {"events": _sdk()},
    "traces_content": lambda _: {"events": _sdk(content=True)},
    "metrics_and_traces_sdk": lambda _: {"events": [Metrics(registry=CollectorRegistry()), *_sdk()]},
    "checkpoint": lambda folder: {"progress": False, "checkpoint_dir": folder},
}


async def watched(way: str, url: str, agents: int) -> None:
    with TemporaryDirectory() as folder:
        results = await BatchAgent.run(
            task="Review item {i}: is it in order?",
            system_prompt=SYSTEM,
            inputs=[{"i": index} for index in range(agents)],
            tools=[look_up],
            backend=url,
            model="sim",
            max_inflight=INFLIGHT,
            **WAYS[way](Path(folder)),
        )
    failed = sum(not result.ok for result in results)
    if failed:
        raise SystemExit(f"{failed} of {agents} agents failed")


def measure(way: str, url: str) -> dict[str, float]:
    """A warm-up, then the run that counts."""

    async def both() -> tuple[float, float]:
        await watched(way, url, WARM_UP)
        cpu, wall = time.process_time(), time.perf_counter()
        await watched(way, url, AGENTS)
        return time.process_time() - cpu, time.perf_counter() - wall

    cpu, wall = asyncio.run(both())
    return {"cpu_us_per_agent": cpu / AGENTS * 1e6, "cpu_s": cpu, "wall_s": wall}


def main() -> None:
    rounds: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with SimServer(SimConfig(zero_latency=True, prefix_caching=False), Script()) as sim:
        for _ in range(ROUNDS):
            for way, taken in rounds.items():
                taken.append(in_own_process("observability", way, sim.url))
    ways = {way: median_of(taken) for way, taken in rounds.items()}
    base = ways["none"]
    numbers = {
        "agents": AGENTS,
        "turns_and_calls_per_agent": [2, 1],
        "inflight": INFLIGHT,
        "rounds": ROUNDS,
        "ways": ways,
        "ratios": {
            way: {name: round(taken[name] / base[name], 3) for name in ("cpu_s", "wall_s")}
            for way, taken in ways.items()
            if way != "none"
        },
        "more_cpu_us_per_agent": {
            way: round(taken["cpu_us_per_agent"] - base["cpu_us_per_agent"], 1) for way, taken in ways.items()
        },
        "all_rounds": rounds,
    }
    print(json.dumps({name: value for name, value in numbers.items() if name != "all_rounds"}, indent=2))
    print(report.write("watching", numbers))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(measure(sys.argv[1], sys.argv[2])))
    else:
        main()
