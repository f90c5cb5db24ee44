"""How much faster more workers are than one."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from batch_agent.sim import Script, SimConfig, SimServer
from benchmarks.cluster.agents import Agents
from benchmarks.cluster.redis_stats import Server
from benchmarks.cluster.rounds import Asked, Numbers, Rounds, few_commands, target
from benchmarks.cluster.runs import apart, shared
from benchmarks.cluster.worker_process import Errand

ROOM = 32
"""Agents that a process has under way, in the part where it waits for the engine."""
BUSY_ROOM = 64
TARGETS = {2: 1.8, 4: 3.4}

LATENCY = SimConfig(
    step_base_ms=30.0,
    step_us_per_seq=0.0,
    prefill_us_per_token=0.0,
    step_ns_per_kv_token=0.0,
    max_num_seqs=2_048,
    max_num_batched_tokens=1_000_000,
    num_blocks=1_000_000,
    prefix_caching=False,
)
"""However many requests there are, each is answered as quickly: there is room for all."""
NO_LATENCY = SimConfig(zero_latency=True, prefix_caching=False)


async def latency(server: Server, asked: Asked) -> Numbers:
    """The engine makes everybody wait, and each process has only so many agents under way."""
    agents = Agents(asked.agents or 1_200, tool_s=0.05)
    rounds, commands = Rounds("scaling-latency"), dict[str, dict[str, float]]()
    for _ in asked.turns():
        for count in asked.workers:
            with SimServer(LATENCY) as engine:
                errand = Errand("caller", agents, engine.url, redis=server.url, max_dispatched=ROOM, warm_up=ROOM)
                workers = [replace(errand, role="worker")] * (count - 1)
                found = await shared(server, errand, workers, [engine])
                rounds.add(f"ours x{count}", found.numbers)
                commands[f"ours x{count}"] = found.commands
            with SimServer(LATENCY) as engine:
                loops = [replace(errand, role="gather", backend=engine.url)] * count
                rounds.add(f"shards x{count}", await apart(_shards(loops), [engine]))
    result = _result(rounds, "scaling-latency", asked.workers)
    result["targets"] += few_commands("scaling-latency", result["medians"])
    return {"agents": agents.number, "at_once": ROOM, **result, "commands": commands}


async def cpu(server: Server, asked: Asked) -> Numbers:
    """The client is busy all the time. Each process has an engine of its own, so that none waits for one. As many
    agents for each worker: with as many in all, four workers would end within a second, before they are warm."""
    agents = Agents(asked.agents or 6_000, is_told=False)
    rounds = Rounds("scaling-cpu")
    for _ in asked.turns():
        for count in asked.workers:
            for way in ("ours", "ours, caller apart", "shards"):
                with ExitStack() as stack:
                    script = Script(answer_tokens=24)
                    engines = [stack.enter_context(SimServer(NO_LATENCY, script)) for _ in range(count)]
                    rounds.add(
                        f"{way} x{count}",
                        await _busy(server, way, replace(agents, number=agents.number * count), engines),
                    )
    cores = os.cpu_count() or 1
    enough = [count for count in asked.workers if 2 * count < cores]
    return {"agents_per_worker": agents.number, "at_once": BUSY_ROOM, **_result(rounds, "scaling-cpu", enough)}


async def _busy(server: Server, way: str, agents: Agents, engines: list[SimServer]) -> Numbers:
    errand = Errand("gather", agents, "", max_dispatched=BUSY_ROOM, warm_up=200)
    each = [replace(errand, backend=engine.url) for engine in engines]
    if way == "shards":
        return await apart(_shards(each), engines)
    workers = [replace(errand, role="worker", redis=server.url) for errand in each]
    if way == "ours":
        return (await shared(server, replace(workers[0], role="caller"), workers[1:], engines)).numbers
    return (await shared(server, replace(workers[0], role="collector"), workers, engines)).numbers


def _shards(errands: Sequence[Errand]) -> list[Errand]:
    return [replace(errand, shard=(at, len(errands))) for at, errand in enumerate(errands)]


def _result(rounds: Rounds, part: str, workers: Sequence[int]) -> Numbers:
    """`workers`: how many there are cores for."""
    medians = rounds.medians()
    speeds: dict[str, dict[str, float]] = {}
    for case, numbers in medians.items():
        way, _, count = case.rpartition(" x")
        speeds.setdefault(way, {})[count] = numbers["agents_per_s"]
    ratios = {
        way: {count: round(speed / found["1"], 3) for count, speed in found.items()}
        for way, found in speeds.items()
        if "1" in found
    }
    return {
        "ratios": ratios,
        "ours_to_shards": {count: round(speed / speeds["shards"][count], 3) for count, speed in speeds["ours"].items()},
        "medians": medians,
        "targets": [
            target(f"{part}: {count} workers, times as fast as one", ratios["ours"][str(count)], least=least)
            for count, least in TARGETS.items()
            if count in workers and ratios
        ],
        "all_rounds": rounds.taken,
    }
