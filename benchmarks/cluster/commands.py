"""Commands of Redis for an agent, at light and heavy load. Heartbeats, events, joining and
leaving are counted apart."""

from dataclasses import replace

from batch_agent.sim import SimServer
from benchmarks.cluster.agents import Agents
from benchmarks.cluster.monitor import FOR_AGENTS
from benchmarks.cluster.redis_stats import Server
from benchmarks.cluster.rounds import MOST_COMMANDS, Asked, Numbers, Rounds, target
from benchmarks.cluster.runs import Measured, shared
from benchmarks.cluster.scaling import LATENCY, ROOM
from benchmarks.cluster.worker_process import Errand

_TOOL_S = 0.05
_CALLS = {
    "no calls": Agents(0, calls=0),
    "own calls": Agents(0, tool_s=_TOOL_S),
    "shared calls": Agents(0, keys=5, tool_s=_TOOL_S),
    "writes": Agents(0, effect="write", tool_s=_TOOL_S),
}
_LOADS = {"light": (1, 10), "medium": (2, 200), "heavy": (4, 1_000)}
"""Workers and agents."""


async def commands(server: Server, asked: Asked) -> Numbers:
    """Agents of two turns, each process with so many under way, on an engine that makes everybody wait."""
    rounds = Rounds("commands")
    by_name, by_script = dict[str, dict[str, float]](), dict[str, dict[str, float]]()
    for _ in asked.turns():
        for load, (workers, number) in _LOADS.items():
            for calls, agents in _CALLS.items():
                case = f"{load}: {workers} workers, {calls}"
                with SimServer(LATENCY) as engine:
                    wanted = replace(agents, number=min(number, asked.agents or number))
                    errand = Errand("caller", wanted, engine.url, redis=server.url, max_dispatched=ROOM, warm_up=ROOM)
                    others = [replace(errand, role="worker")] * (workers - 1)
                    found = await shared(server, errand, others, [engine], is_watched=True)
                by_name[case] = found.commands
                by_script[case] = {name: round(n / wanted.number, 3) for name, n in found.by_script.most_common()}
                rounds.add(case, _split(found, wanted.number))
    medians = rounds.medians()
    return {
        "at_once": ROOM,
        "medians": medians,
        "commands": by_name,
        "by_script": by_script,
        "targets": [
            target(f"commands: {case}: for an agent", found["for_agents"], most=MOST_COMMANDS)
            for case, found in medians.items()
        ],
        "all_rounds": rounds.taken,
    }


def _split(found: Measured, agents: int) -> Numbers:
    """What is for agents, and what is for everything that takes time or happens once."""
    for_agents = sum(found.by_script[name] for name in FOR_AGENTS) / agents
    return {
        "for_agents": for_agents,
        "heartbeats_and_joining": sum(found.by_script.values()) / agents - for_agents,
        "all": found.numbers["commands_per_agent"],
        **{name: found.numbers[name] for name in ("wall_s", "lost", "twice", "redis_bytes_per_agent")},
    }
