"""The agents of `resident`, by one worker and by four that share its slots and its KV cache."""

import asyncio
from functools import partial
from typing import Any

from batch_agent.backends.connect import connect
from batch_agent.cluster.memory.memory_coordinator import MemoryCoordinator
from batch_agent.core.results import AgentResult
from batch_agent.core.spec import BatchSpec
from batch_agent.engine.result_stream import ResultStream
from batch_agent.run import runner
from batch_agent.run.setup import RunSetup
from batch_agent.store.memory_store import MemoryStore

from .runs import measured, run_ours
from .scenario import Scene, between
from .scripted_backend import Played
from .server_info import Server
from .turn_recorder import Watch
from .vllm_process import say
from .workloads import RESIDENT, Sizes, Stage, scene_of

WORKERS = 4


class _Shared(MemoryCoordinator):
    """Open for as long as it is there, whoever comes and goes."""

    async def open(self) -> None:
        pass

    async def aclose(self) -> None:
        pass


async def workers(stage: Stage) -> None:
    """One process, several workers: each has a gate, a ledger and slots of its own, as it would elsewhere. This shows
    what their portions make of the server, not what processes cost."""
    scale = stage.scale
    tokens = (scale.of_tokens(each) for each in (RESIDENT.shared, RESIDENT.own, RESIDENT.output, RESIDENT.result))
    sizes = Sizes(scale.of_agents(RESIDENT.agents), RESIDENT.turns, *tokens)
    seconds = between(1.0 * scale.seconds, 3.0 * scale.seconds)
    for name, several in (("alone", 1), ("four", WORKERS), ("alone again", 1), ("four again", WORKERS)):
        scene = scene_of(stage.words, sizes, f"workers-{name}", seconds=seconds)
        numbers = (
            await run_ours(stage.server, scene, stage.limit)
            if several == 1
            else await run_shared(stage.server, scene, stage.limit, several)
        )
        stage.notes.put(numbers, "workers", name)


async def run_shared(
    server: Server, scene: Scene, limit: float, several: int, *, traced: bool = False
) -> dict[str, Any]:
    watch, coordinator = Watch(), _Shared(MemoryStore())
    backend = await connect(f"{server.url}/v1", server.model, uses_tools=False, notify=say)
    played = Played(backend, scene, watch)

    def on_result(result: AgentResult) -> None:
        watch.agent_done(None if result.ok else str(result.error))

    def setup(inputs: list[Any]) -> RunSetup:
        spec = BatchSpec.of(
            task="{it}",
            inputs=inputs,
            system_prompt=scene.system,
            tools=[scene.tool(watch)],
            backend=played,
            streaming=True,
            on_result=on_result,
        )
        return RunSetup.validate(spec, None)

    async def run() -> None:
        async with (
            asyncio.TaskGroup() as group,
            ResultStream(partial(runner.run, setup(list(scene.tasks)), coordinator=coordinator)) as all_of,
        ):
            while not await coordinator.work.pending_count():
                await asyncio.sleep(0.01)  # workers that come before there is work would go again
            for _ in range(several - 1):
                group.create_task(runner.work(setup([]), coordinator))
            async for _ in all_of:
                pass

    try:
        return await measured(server, watch, run, limit, traced=traced)
    finally:
        await backend.aclose()
