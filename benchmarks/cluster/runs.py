"""One measurement: agents by workers that share a run, or by loops that each have a fixed share."""

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from batch_agent.cluster.presence import ClientPresence
from batch_agent.cluster.redis.redis_coordinator import RedisCoordinator
from batch_agent.cluster.shared_limits import workers_of
from batch_agent.core.coordinator import Coordinator
from batch_agent.sim import SimServer
from benchmarks.cluster.monitor import watch
from benchmarks.cluster.process_group import Child, Numbers, crew
from benchmarks.cluster.redis_stats import Seen, Server
from benchmarks.cluster.worker_process import Errand

_PATIENCE_S = 30.0
_PATIENCE_FOR_EACH_S = 1.0
_LONG_S = 3600.0


@dataclass(frozen=True, slots=True)
class Under:
    """A shared run under way, for those who disturb it."""

    server: Server
    run: str
    agents: int
    workers: Sequence[Child]

    async def reaches(self, share: float) -> None:
        """Returns when so many of the agents have ended."""
        while await self.server.ended(self.run) < share * self.agents:
            await asyncio.sleep(0.02)


Disturb = Callable[[Under], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Measured:
    numbers: Numbers
    seen: Seen
    commands: dict[str, float]
    """That the server was given for one agent, by name."""
    by_script: Counter[str]
    """The same, by what they are for; empty if nobody watched."""


async def shared(
    server: Server,
    caller: Errand,
    workers: Sequence[Errand],
    engines: Sequence[SimServer],
    disturb: Disturb | None = None,
    *,
    is_watched: bool = False,
) -> Measured:
    """Workers have joined before the caller posts anything, so that their start is not counted. `is_watched`: counts
    commands by script, which costs the server something."""
    run, agents = f"bench-{secrets.token_hex(4)}", caller.agents.number
    coordinator = RedisCoordinator(server.url, run)
    try:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(
                ClientPresence(coordinator.documents, _LONG_S).present("benchmark")
            )  # so that workers stay
            errands = [replace(errand, run=run) for errand in (caller, *workers)]
            asking, *working = await stack.enter_async_context(crew(errands))
            await _begin(coordinator, working, workers[0].copies if workers else 1)
            load, before = _Load(engines), await server.taken()
            by_script = Counter[str]()
            if is_watched:
                by_script = await stack.enter_async_context(watch(server.url))
            asking.tell()
            async with asyncio.TaskGroup() as group:
                if disturb is not None:
                    group.create_task(disturb(Under(server, run, agents, working)))
                told = await asking.says()
            taken = (await server.taken()).since(before)
            by_script = by_script.copy()
            stopped = [await _stopped(child) for child in working]
            cpu = told["cpu_s"] + sum(each["cpu_s"] for each in stopped)
        seen = await server.seen(run)
        numbers = {
            **_numbers([told], seen.seconds, cpu, agents),
            "caller_s": told["ended"] - told["began"],
            "caller_cpu_s": told["cpu_s"],
            "rss_mb": max(each["rss_mb"] for each in (told, *stopped)),
            **load.numbers(seen.seconds),
            **taken.for_each(agents),
        }
        return Measured(numbers, seen, taken.commands_for_each(agents), by_script)
    finally:
        await server.forget(run)
        await coordinator.aclose()


async def apart(
    errands: Sequence[Errand],
    engines: Sequence[SimServer],
    disturb: Callable[[Sequence[Child]], Coroutine[Any, Any, None]] | None = None,
) -> Numbers:
    """Processes that know nothing of each other."""
    async with crew(errands) as children:
        load = _Load(engines)
        for child in children:
            child.tell()
        if disturb is not None:
            await disturb(children)
        told = [await child.says() for child in children if not child.was_killed]
    wall = max(each["ended"] for each in told) - min(each["began"] for each in told)
    cpu = sum(each["cpu_s"] for each in told)
    return {**_numbers(told, wall, cpu, errands[0].agents.number), **load.numbers(wall)}


def _numbers(told: Sequence[Numbers], wall_s: float, cpu_s: float, agents: int) -> Numbers:
    return {
        "wall_s": wall_s,
        "agents_per_s": agents / wall_s,
        "cpu_s": cpu_s,
        "cpu_us_per_agent": cpu_s / agents * 1e6,
        "lost": agents - sum(each["right"] for each in told),
        "twice": sum(each["twice"] for each in told),
    }


class _Load:
    """What the engines have to do from now on."""

    def __init__(self, engines: Sequence[SimServer]) -> None:
        self._before = {engine: engine.cpu_seconds() for engine in engines}

    def numbers(self, wall_s: float) -> Numbers:
        """`busiest_engine` is a share of a core."""
        spent = [engine.cpu_seconds() - before for engine, before in self._before.items()]
        return {"engine_cpu_s": sum(spent), "busiest_engine": max(spent) / wall_s}


async def _begin(coordinator: Coordinator, workers: Sequence[Child], copies: int = 1) -> None:
    """Returns when all workers, so many in each process, have joined."""
    number = copies * len(workers)
    for child in workers:
        child.tell()
    async with asyncio.timeout(_PATIENCE_S + _PATIENCE_FOR_EACH_S * number):
        while len(await workers_of(coordinator.documents)) < number:
            await asyncio.sleep(0.1)


async def _stopped(worker: Child) -> Numbers:
    """Nothing of one that was killed."""
    if worker.was_killed:
        return {"cpu_s": 0.0, "rss_mb": 0.0}
    worker.tell()
    return await worker.says()
