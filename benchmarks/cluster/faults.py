"""What becomes of a run when a worker, Redis or the way between them fails."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from batch_agent.sim import SimServer
from benchmarks.cluster.agents import Agents
from benchmarks.cluster.breakable_proxy import Way
from benchmarks.cluster.process_group import Child
from benchmarks.cluster.redis_stats import Seen, Server
from benchmarks.cluster.rounds import Asked, Numbers, Rounds, target
from benchmarks.cluster.runs import Disturb, Measured, Under, apart, shared
from benchmarks.cluster.scaling import LATENCY
from benchmarks.cluster.worker_process import Errand

ROOM = 16
LEASE_S = 2.0
CUT_S = 2.5 * LEASE_S
AWAY_S = 1.0
WHEN = 0.3
_GREETINGS = 1
"""Requests of each process before its first agent: whether the server takes calls of tools."""
_KEPT = ("wall_s", "agents_per_s", "lost")


async def faults(server: Server, asked: Asked) -> Numbers:
    """Agents whose tool changes something, on an engine that makes them wait."""
    agents = Agents(asked.agents or 1_000, effect="write", tool_s=0.05)
    workers = max(2, *asked.workers)
    rounds = Rounds("faults")
    for _ in asked.turns():
        for name in ("none", "worker killed", "worker cut off", "Redis restarted"):
            if name != "Redis restarted" or server.own is not None:
                rounds.add(name, await _shared(server, name, agents, workers))
        for name in ("shards", "shards, one killed"):
            rounds.add(name, await _shards(agents, workers, is_killed=name != "shards"))
    medians = rounds.medians()
    bases = {name: "shards" if name.startswith("shards") else "none" for name in medians}
    ours = [name for name, base in bases.items() if base == "none"]
    return {
        "agents": agents.number,
        "workers": workers,
        "at_once": ROOM,
        "lease_s": LEASE_S,
        "cut_s": CUT_S,
        "away_s": AWAY_S,
        "against_none": {
            name: round(medians[name]["wall_s"] / medians[base]["wall_s"], 3) for name, base in bases.items()
        },
        "medians": medians,
        "targets": [
            target(f"faults: {name}: {what}", max(one[what] for one in rounds.taken[name]), most=0)
            for name in ours
            for what in ("lost", "doubled", "writes_twice")
        ],
        "all_rounds": rounds.taken,
    }


async def _shared(server: Server, name: str, agents: Agents, count: int) -> Numbers:
    async with AsyncExitStack() as stack:
        engine = stack.enter_context(SimServer(LATENCY))
        notes = Path(stack.enter_context(TemporaryDirectory())) / "writes"
        notes.touch()
        errand = Errand(
            "caller",
            agents,
            engine.url,
            redis=server.url,
            max_dispatched=ROOM,
            lease=LEASE_S,
            tool_notes=str(notes),
        )
        workers = [replace(errand, role="worker")] * (count - 1)
        disturb: dict[str, Disturb] = {"worker killed": _kill_worker, "Redis restarted": _restart}
        if name == "worker cut off":
            way = await stack.enter_async_context(Way(server.url).open())
            workers[-1] = replace(workers[-1], redis=way.url)
            disturb[name] = lambda under: _cut(under, way)
        measured = await shared(server, errand, workers, [engine], disturb.get(name))
        asked = engine.metrics()["sim:http_requests_total"] - count * _GREETINGS
        return {**_found(measured, notes, agents.number), "asked_again": asked - 2 * agents.number}


def _found(measured: Measured, notes: Path, agents: int) -> Numbers:
    numbers, made = measured.numbers, Counter(notes.read_text().split())
    return {
        **{name: numbers[name] for name in _KEPT},
        "doubled": numbers["twice"] + measured.seen.ended_twice + _told_twice(measured.seen),
        "writes_twice": made.total() - len(made),
        "writes_unknown": agents - len(made),
    }


def _told_twice(seen: Seen) -> int:
    """Agents that have more than one story in the place of one."""
    return sum(count for story, count in seen.stories.items() if Counter(story)["replied"] != 2)


async def _kill_worker(under: Under) -> None:
    await under.reaches(WHEN)
    await under.workers[-1].kill()


async def _cut(under: Under, way: Way) -> None:
    await under.reaches(WHEN)
    way.cut()
    await asyncio.sleep(CUT_S)
    if await under.server.ended(under.run) == under.agents:
        raise SystemExit("It was over before the worker was back: use more agents.")
    way.mend()


async def _restart(under: Under) -> None:
    await under.reaches(WHEN)
    await under.server.restart(AWAY_S)


async def _shards(agents: Agents, count: int, *, is_killed: bool) -> Numbers:
    """Each keeps its results as they come, so that only those are lost that a killed one did not have yet."""
    with SimServer(LATENCY) as engine, TemporaryDirectory() as folder:
        writes, results = Path(folder) / "writes", Path(folder) / "results"
        results.touch()
        errand = Errand(
            "gather",
            agents,
            engine.url,
            max_dispatched=ROOM,
            tool_notes=str(writes),
            result_notes=str(results),
        )

        async def kill(loops: Sequence[Child]) -> None:
            while len(results.read_text().split()) < WHEN * agents.number:
                await asyncio.sleep(0.02)
            await loops[-1].kill()

        loops = [replace(errand, shard=(at, count)) for at in range(count)]
        numbers = await apart(loops, [engine], kill if is_killed else None)
        made = Counter(writes.read_text().split())
        return {
            **{name: numbers[name] for name in _KEPT},
            "lost": agents.number - len(set(results.read_text().split())),
            "writes_twice": made.total() - len(made),
            "writes_unknown": agents.number - len(made),
        }
