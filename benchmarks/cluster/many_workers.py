"""Many workers of one run, in one process: what they cost their Redis server, of which there is only one.

Each has a coordinator, a lease and quotas of its own, as in a process of its own; what they share is the CPU of the
client, which is not what is measured. Their engine is a timer: one turn, of a second."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from batch_agent.cluster.coordinator_address import coordinator_of
from batch_agent.cluster.presence import ClientPresence
from batch_agent.cluster.redis.redis_coordinator import RedisCoordinator
from batch_agent.core.spec import BatchSpec
from batch_agent.engine.result_stream import ResultStream
from batch_agent.run import runner
from batch_agent.run.setup import RunSetup
from batch_agent.testing import ScriptedBackend, say
from benchmarks.cluster.redis_stats import Server
from benchmarks.cluster.rounds import Asked, Numbers, Rounds

BUSY = (1, 4, 16)
"""Workers with agents: as many as the CPU of one process is enough for."""
IDLE = (1, 4, 16, 64, 160)
IN_FLIGHT = 4
"""Agents of a worker at once."""
TURN_S = 1.0
_TURNS = 12
"""So many agents one after the other, in each of a worker's slots."""
_IDLE_S = 10.0
_LONG_S = 3600.0
_STARTED = 10
"""Workers that start in a second, at least."""


async def many_workers(server: Server, asked: Asked) -> Numbers:
    """`--workers` is not used: these are more than there are cores."""
    rounds = Rounds("many-workers")
    for _ in asked.turns():
        for workers in IDLE:
            rounds.add(f"idle x{workers}", await _idle(server, workers))
        for workers in BUSY:
            rounds.add(f"busy x{workers}", await _busy(server, workers))
    return {
        "at_once": IN_FLIGHT,
        "turn_s": TURN_S,
        "medians": rounds.medians(),
        "targets": [],
        "all_rounds": rounds.taken,
    }


async def _idle(server: Server, workers: int) -> Numbers:
    """Workers that wait for work, while a caller is there."""
    async with _run(server) as run:
        coordinator = RedisCoordinator(server.url, run)
        try:
            caller = ClientPresence(coordinator.documents, _LONG_S)
            async with caller.present("benchmark"), _workers(server, run, workers):
                await asyncio.sleep(2 + workers / _STARTED)
                before, began = await server.taken(), time.monotonic()
                await asyncio.sleep(_IDLE_S)
                taken, seconds = (await server.taken()).since(before), time.monotonic() - began
        finally:
            await coordinator.aclose()
    each = seconds * workers
    return {
        "commands_per_worker_s": taken.commands.total() / each,
        "messages_per_worker_s": taken.commands["evalsha"] / each,
        "redis_cpu_us_per_worker_s": taken.cpu_s / each * 1e6,
    }


async def _busy(server: Server, workers: int) -> Numbers:
    agents = workers * IN_FLIGHT * _TURNS
    async with _run(server) as run:
        before = await server.taken()
        async with _workers(server, run, workers):
            delivered = await _collect(_spec(server, run, [{"it": str(agent)} for agent in range(agents)]))
            taken = (await server.taken()).since(before)
        seen = await server.seen(run)
    return {
        "agents": agents,
        "lost": agents - delivered,
        "wall_s": seen.seconds,
        "agents_per_s": agents / seen.seconds,
        "messages_per_agent": taken.commands["evalsha"] / agents,
        **taken.for_each(agents),
    }


@asynccontextmanager
async def _run(server: Server) -> AsyncIterator[str]:
    run = f"bench-{secrets.token_hex(4)}"
    try:
        yield run
    finally:
        await server.forget(run)


@asynccontextmanager
async def _workers(server: Server, run: str, number: int) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_work(partial(_spec, server, run, []))) for _ in range(number)]
        yield
        for task in tasks:
            task.cancel()


def _spec(server: Server, run: str, inputs: list[dict[str, str]]) -> BatchSpec:
    backend = ScriptedBackend(lambda _: say("done"), seconds=TURN_S)
    return BatchSpec.of(
        task="Look at {it}.",
        inputs=inputs,
        backend=backend,
        model="timer",
        max_agents=IN_FLIGHT,
        store=server.url,
        run_id=run,
    )


async def _work(spec: Callable[[], BatchSpec]) -> None:
    while True:  # until it is cancelled; before the caller has come there is nothing to do
        mine = spec()
        coordinator = coordinator_of(mine)
        assert coordinator is not None
        await runner.work(RunSetup.validate(mine, None), coordinator)


async def _collect(spec: BatchSpec) -> int:
    """The number of answers."""
    setup, coordinator = RunSetup.validate(spec, None), coordinator_of(spec)
    async with ResultStream(partial(runner.run, setup, coordinator=coordinator, runs_agents=False)) as stream:
        return sum([result.ok async for result in stream])
