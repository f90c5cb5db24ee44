"""Many workers on one server: whether a result is lost or doubled, what the server does, and what each worker takes."""

import time
from dataclasses import replace

from batch_agent.sim import SimServer
from benchmarks.cluster.agents import Agents
from benchmarks.cluster.redis_stats import Server
from benchmarks.cluster.rounds import Asked, Numbers, Rounds, target
from benchmarks.cluster.runs import shared
from benchmarks.cluster.scaling import LATENCY
from benchmarks.cluster.worker_process import Errand

_AGENTS_EACH = 40
_ROOM = 8
"""Agents that a worker has under way."""


async def worker_processes(server: Server, asked: Asked) -> Numbers:
    """Agents of two turns with calls that they have in common, on an engine that makes everybody wait."""
    rounds = Rounds("worker-processes")
    for _ in asked.turns():
        for count in asked.many:
            agents = Agents(asked.agents or _AGENTS_EACH * count, keys=50, tool_s=0.05)
            with SimServer(LATENCY) as engine:
                errand = Errand("caller", agents, engine.url, redis=server.url, max_dispatched=_ROOM)
                worker = replace(errand, role="worker", copies=asked.per_process)
                processes = max(1, round((count - 1) / asked.per_process))
                began = time.monotonic()
                found = await shared(server, errand, [worker] * processes, [engine])
            numbers = {"workers": found.seen.workers, "doubled": found.seen.ended_twice, **found.numbers}
            numbers["with_start_s"] = time.monotonic() - began
            numbers["redis_cores"] = numbers["redis_cpu_us_per_agent"] * agents.number / 1e6 / numbers["wall_s"]
            rounds.add(f"{count} workers", numbers)
    medians = rounds.medians()
    return {
        "agents_each": _AGENTS_EACH,
        "at_once": _ROOM,
        "per_process": asked.per_process,
        "medians": medians,
        "targets": [
            target(f"worker-processes: {case}: {what}", found[what], most=most)
            for case, found in medians.items()
            for what, most in (("lost", 0), ("doubled", 0), ("rss_mb", 300))
        ],
        "all_rounds": rounds.taken,
    }
