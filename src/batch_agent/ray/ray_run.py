"""Run whose agents run on a Ray cluster."""

import asyncio

from .. import aio
from ..cluster.coordinator_address import coordinator_of
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
        option = f"cluster={setup.spec.distribution.cluster!r}"
        await asyncio.to_thread(require, "ray", option, "'batch-agent[ray]'")
        if table_library(setup.spec.inputs) == "ray":
            from .dataset_run import DatasetRun

            return await DatasetRun(setup).drive(outbox)
        from .deployment import RayDeployment  # needs the extra `ray`
        from .ray_coordinator import RayCoordinator

        deployment = RayDeployment(setup)
        coordinator = coordinator_of(setup.spec) or RayCoordinator(deployment.coordinator)
        try:
            with aio.ungrouped():
                async with asyncio.TaskGroup() as group:
                    working = group.create_task(deployment.work())
                    await runner.run(setup, outbox, coordinator=coordinator, runs_agents=False)
                    working.cancel()
        finally:
            await deployment.leave()
