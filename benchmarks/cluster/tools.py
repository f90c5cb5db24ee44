"""Calls that agents of several workers have in common."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from batch_agent.sim import SimServer
from benchmarks.cluster.agents import Agents
from benchmarks.cluster.redis_stats import Server
from benchmarks.cluster.rounds import Asked, Numbers, Rounds, target
from benchmarks.cluster.runs import apart, shared
from benchmarks.cluster.scaling import LATENCY
from benchmarks.cluster.worker_process import Errand

CASES = {
    "200 agents, one call": Agents(200, keys=1, tool_s=0.2),
    "400 agents, the same 5 calls each": Agents(400, calls=5, keys=5, tool_s=0.2),
}


async def tools(server: Server, asked: Asked) -> Numbers:
    """A tool of 200 ms, called by agents of all workers within a second. Beside it, loops that share nothing."""
    workers = max(asked.workers)
    rounds = Rounds("tools")
    for _ in asked.turns():
        for case, agents in CASES.items():
            for way in ("ours", "shards"):
                rounds.add(f"{case}: {way}", await _measured(server, agents, workers, is_ours=way == "ours"))
    return {
        "workers": workers,
        "calls": {case: agents.number * agents.calls for case, agents in CASES.items()},
        "medians": rounds.medians(),
        "targets": [
            target(
                f"tools: {case}: executions",
                max(one["executed"] for one in rounds.taken[f"{case}: ours"]),
                most=agents.keys,
            )
            for case, agents in CASES.items()
        ],
        "all_rounds": rounds.taken,
    }


async def _measured(server: Server, agents: Agents, workers: int, *, is_ours: bool) -> Numbers:
    with SimServer(LATENCY) as engine, TemporaryDirectory() as folder:
        notes = Path(folder) / "executions"
        errand = Errand("caller", agents, engine.url, redis=server.url, tool_notes=str(notes))
        if is_ours:
            found = await shared(server, errand, [replace(errand, role="worker")] * (workers - 1), [engine])
            numbers = {**found.numbers, "workers": found.seen.workers}
        else:
            loops = [replace(errand, role="gather", shard=(at, workers)) for at in range(workers)]
            numbers = {**await apart(loops, [engine]), "workers": workers}
        executed = len(notes.read_text().split())
    return {"executed": executed, **{name: numbers[name] for name in ("wall_s", "lost", "workers")}}
