"""Commands of Redis for an agent, at light and heavy load. What takes time rather than agents is counted apart."""

import asyncio
import secrets
from dataclasses import dataclass, replace

from batch_agent.cluster.redis.redis_coordinator import RedisCoordinator
from batch_agent.sim import SimServer
from benchmarks.cluster.agents import Agents
from benchmarks.cluster.process_group import crew
from benchmarks.cluster.redis_stats import Server
from benchmarks.cluster.rounds import MOST_COMMANDS, Asked, Numbers, Rounds, target
from benchmarks.cluster.runs import begin, shared
from benchmarks.cluster.scaling import LATENCY, ROOM
from benchmarks.cluster.worker_process import Errand

_TOOL_S = 0.05
_IDLE_S = 4.0
_CALLS = {
    "no calls": Agents(0, calls=0),
    "own calls": Agents(0, tool_s=_TOOL_S),
    "shared calls": Agents(0, keys=5, tool_s=_TOOL_S),
    "writes": Agents(0, effect="write", tool_s=_TOOL_S),
}
_LOADS = {"light": (1, 10), "medium": (2, 200), "heavy": (4, 1_000)}
"""Workers and agents."""


@dataclass(frozen=True, slots=True)
class Idle:
    """What a worker without work takes."""

    joining: float
    """Commands to join and to leave."""
    per_s: float
    """Heartbeats, and looking for work."""


async def commands(server: Server, asked: Asked) -> Numbers:
    """Agents of two turns, each process with so many under way, on an engine that makes everybody wait."""
    rounds, by_name = Rounds("commands"), dict[str, dict[str, float]]()
    for _ in asked.turns():
        with SimServer(LATENCY) as engine:
            idle = await _idle(server, engine)
        rounds.add("idle worker", {"joining_and_leaving": idle.joining, "per_s": idle.per_s})
        for load, (workers, number) in _LOADS.items():
            for calls, agents in _CALLS.items():
                case = f"{load}: {workers} workers, {calls}"
                with SimServer(LATENCY) as engine:
                    wanted = replace(agents, number=min(number, asked.agents or number))
                    errand = Errand("caller", wanted, engine.url, redis=server.url, max_dispatched=ROOM, warm_up=ROOM)
                    found = await shared(server, errand, [replace(errand, role="worker")] * (workers - 1), [engine])
                by_name[case] = found.commands
                rounds.add(case, _split(found.numbers, idle, workers, wanted.number))
    medians = rounds.medians()
    return {
        "at_once": ROOM,
        "medians": medians,
        "commands": by_name,
        "targets": [
            target(f"commands: {case}: for an agent", found["for_agents"], most=MOST_COMMANDS)
            for case, found in medians.items()
            if "for_agents" in found
        ],
        "all_rounds": rounds.taken,
    }


def _split(numbers: Numbers, idle: Idle, workers: int, agents: int) -> Numbers:
    """The caller joins and leaves while the commands are counted; heartbeats are everybody's."""
    heartbeats = idle.per_s * workers * numbers["caller_s"] / agents
    joining = idle.joining / agents
    return {
        "for_agents": numbers["commands_per_agent"] - heartbeats - joining,
        "heartbeats": heartbeats,
        "joining": joining,
        "all": numbers["commands_per_agent"],
        **{name: numbers[name] for name in ("wall_s", "lost", "twice", "redis_bytes_per_agent")},
    }


async def _idle(server: Server, engine: SimServer) -> Idle:
    """A caller without inputs joins and leaves; then a worker waits for work that does not come."""
    errand = Errand("caller", Agents(0), engine.url, redis=server.url, run=f"bench-{secrets.token_hex(4)}")
    coordinator = RedisCoordinator(server.url, errand.run)
    try:
        async with crew([errand]) as [caller]:
            before = await server.taken()
            caller.tell()
            told = await caller.says()
            joining = (await server.taken()).since(before).commands.total()
        async with crew([replace(errand, role="worker")]) as workers:
            await begin(coordinator, workers)
            before = await server.taken()
            await asyncio.sleep(_IDLE_S)
            waiting = (await server.taken()).since(before).commands.total()
        per_s = waiting / _IDLE_S
        return Idle(max(0.0, joining - per_s * (told["ended"] - told["began"])), per_s)
    finally:
        await server.forget(errand.run)
        await coordinator.aclose()
