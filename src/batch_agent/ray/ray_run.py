"""Runs and flows whose agents run on a Ray cluster."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from .. import aio
from ..cluster.coordinator_address import FlowCoordinators, coordinator_of, flow_coordinators
from ..core.task_fields import table_library
from ..data.optional_imports import require
from ..engine.result_stream import ResultChannel
from ..run import runner
from ..run.setup import RunSetup


class RayRun:
    """Run whose jobs this process submits and whose results it collects; agents run in actors, one for each node.
    The rows of a Ray Dataset stay in Ray Data, whose actors run them by blocks."""

    def __init__(self, setup: RunSetup) -> None:
        self._setup = setup

    async def drive(self, outbox: ResultChannel) -> None:
        """Runs the batch and sends each result to `outbox`.

        Raises SpecError, BackendError, RunStopped and StoreError."""
        setup = self._setup
        await _require_ray(setup)
        if table_library(setup.spec.inputs) == "ray":
            from .dataset_run import DatasetRun

            return await DatasetRun(setup).drive(outbox)
        from .deployment import RayDeployment  # needs the extra `ray`
        from .ray_coordinator import RayCoordinator

        deployment = RayDeployment([setup])
        coordinator = coordinator_of(setup.spec) or RayCoordinator(deployment.coordinator)
        try:
            with aio.ungrouped():
                async with asyncio.TaskGroup() as group:
                    working = group.create_task(deployment.work())
                    await runner.run(setup, outbox, coordinator=coordinator, runs_agents=False)
                    working.cancel()
        finally:
            await deployment.leave()


@asynccontextmanager
async def open_coordinators(setups: Sequence[RunSetup]) -> AsyncIterator[FlowCoordinators]:
    """The coordinators of a flow with these stages: at its store, or actors. With `cluster=`, its workers run while the
    block runs. Raises SpecError, StoreError, and the error of the last worker when all have failed."""
    at_store = flow_coordinators([setup.spec for setup in setups])
    if setups[0].spec.distribution.cluster is None:
        assert at_store is not None
        yield at_store
        return
    await _require_ray(setups[0])
    from .deployment import RayDeployment
    from .ray_coordinator import RayCoordinator

    deployment = RayDeployment(setups)
    in_actors = [RayCoordinator(partial(deployment.coordinator, setup.stage)) for setup in setups]
    try:
        with aio.ungrouped():
            async with asyncio.TaskGroup() as group:
                working = group.create_task(deployment.work())
                yield at_store or (RayCoordinator(deployment.coordinator), in_actors)
                working.cancel()
    finally:
        await deployment.leave()


async def _require_ray(setup: RunSetup) -> None:
    option = f"cluster={setup.spec.distribution.cluster!r}"
    await asyncio.to_thread(require, "ray", option, "'batch-agent[ray]'")
