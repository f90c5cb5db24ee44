"""A run whose agents are at work on a Ray cluster."""

import asyncio

from .. import aio
from ..cluster.coordinator_address import coordinator_of
from ..data.optional_imports import require
from ..engine.result_stream import ResultChannel
from ..run import runner
from ..run.setup import RunSetup


class RayRun:
    """This process posts the inputs and collects the results; agents run in actors, one for each node."""

    def __init__(self, setup: RunSetup) -> None:
        self._setup = setup

    async def drive(self, outbox: ResultChannel) -> None:
        """Raises SpecError, BackendError, RunStopped and StoreError."""
        setup = self._setup
        what = f"cluster={setup.spec.together.cluster!r}"
        await asyncio.to_thread(require, "ray", what, "'batch-agent[ray]'")
        from .deployment import RayDeployment
        from .ray_coordinator import RayCoordinator  # an extra

        place = RayDeployment(setup)
        coordinator = coordinator_of(setup.spec) or RayCoordinator(place.coordinator)
        try:
            with aio.ungrouped():
                async with asyncio.TaskGroup() as group:
                    working = group.create_task(place.work())
                    await runner.run(setup, outbox, coordinator=coordinator, works=False)
                    working.cancel()
        finally:
            await place.leave()
