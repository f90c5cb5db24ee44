"""What it costs to share a run: the client's CPU, and all that is Redis's."""

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from batch_agent.sim import Script, SimServer
from benchmarks.cluster.agents import Agents
from benchmarks.cluster.redis_stats import Server
from benchmarks.cluster.rounds import Asked, Numbers, Rounds, few_commands
from benchmarks.cluster.runs import apart, shared
from benchmarks.cluster.scaling import NO_LATENCY
from benchmarks.cluster.worker_process import Errand

INFLIGHT = 64
_MANY = 1_000_000


@dataclass(frozen=True, slots=True)
class Way:
    """`calls`: of the tool; the same few for all agents, another one for each, or such as change something."""

    where: str
    calls: str = "few"
    workers: int = 1


WAYS = {
    "gather loop": Way("gather"),
    "no store": Way("none"),
    "SQLite": Way("sqlite"),
    "hub in the process": Way("memory"),
    "Redis": Way("redis"),
    "Redis, own calls": Way("redis", "own"),
    "Redis, writes": Way("redis", "writes"),
    "no store, writes": Way("none", "writes"),
}


async def cost(server: Server, asked: Asked) -> Numbers:
    """Two-turn agents with a tool, on an engine that answers at once."""
    number = asked.agents or 2_000
    most = max(asked.workers)
    ways = dict(WAYS)
    if most > 1:
        ways |= {f"{name}, {most} workers": replace(WAYS[name], workers=most) for name in ("Redis", "Redis, own calls")}
    rounds, commands = Rounds("cost"), dict[str, dict[str, float]]()
    for _ in asked.turns():
        for name, way in ways.items():
            agents = Agents(number, effect="write" if way.calls == "writes" else "read", is_told=False)
            with SimServer(NO_LATENCY, Script(answer_tokens=24, keys=8 if way.calls == "few" else _MANY)) as engine:
                numbers, commands[name] = await _measured(server, way, agents, engine)
            rounds.add(name, numbers)
    medians = rounds.medians()
    base = medians["no store"]
    return {
        "agents": number,
        "inflight": INFLIGHT,
        "medians": medians,
        "against_no_store": {
            name: {what: round(found[what] / base[what], 3) for what in ("cpu_us_per_agent", "wall_s")}
            for name, found in medians.items()
        },
        "commands": {name: found for name, found in commands.items() if found},
        "targets": few_commands("cost", medians),
        "all_rounds": rounds.taken,
    }


async def _measured(
    server: Server, way: Way, agents: Agents, engine: SimServer
) -> tuple[dict[str, float], dict[str, float]]:
    errand = Errand("caller", agents, engine.url, max_inflight=INFLIGHT, warm_up=200)
    if way.where == "redis":
        errand = replace(errand, redis=server.url)
        found = await shared(server, errand, [replace(errand, role="worker")] * (way.workers - 1), [engine])
        return found.numbers, found.commands
    with TemporaryDirectory() as folder:
        if way.where == "gather":
            errand = replace(errand, role="gather")
        elif way.where == "sqlite":
            errand = replace(errand, checkpoint_dir=str(Path(folder) / "run"))
        elif way.where == "memory":
            errand = replace(errand, in_memory=True)
        return await apart([errand], [engine]), {}
