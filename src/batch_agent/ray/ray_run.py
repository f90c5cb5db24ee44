"""Runs and flows whose agents run on a Ray cluster."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from .. import aio
from ..cluster.coordinator_address import FlowCoordinators, coordinator_of
from ..data.optional_imports import require
from ..engine.result_stream import ResultChannel
from ..run import runner
from ..run.setup import RunSetup


class RayRun:
    """Run whose jobs this process submits and whose results it collects; agents run in actors, one for each node."""

    def __init__(self, setup: RunSetup) -> None:
        self._setup = setup

    async def drive(self, outbox: ResultChannel) -> None:
        """Runs the batch and sends each result to `outbox`.

        Raises SpecError, BackendError, RunStopped and StoreError."""
        setup = self._setup
        await _require_ray(setup)
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
async def deployed_stages(
    setups: Sequence[RunSetup], at_store: FlowCoordinators | None
) -> AsyncIterator[FlowCoordinators]:
    """Workers of a flow, while the block runs. Yields the coordinators of the flow and of its stages: those `at_store`,
    or actors. Raises SpecError, StoreError, and the error of the last worker when all have failed."""
    await _require_ray(setups[0])
    from .deployment import RayDeployment
    from .ray_coordinator import RayCoordinator

    deployment = RayDeployment(setups)
    names = [setup.stage for setup in setups]
    try:
        with aio.ungrouped():
            async with asyncio.TaskGroup() as group:
                working = group.create_task(deployment.work())
                yield at_store or (
                    RayCoordinator(deployment.coordinator),
                    [RayCoordinator(partial(deployment.coordinator, name)) for name in names],
                )
                working.cancel()
    finally:
        await deployment.leave()


async def _require_ray(setup: RunSetup) -> None:
    option = f"cluster={setup.spec.distribution.cluster!r}"
    await asyncio.to_thread(require, "ray", option, "'batch-agent[ray]'")
