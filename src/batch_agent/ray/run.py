"""A run whose agents are at work on a Ray cluster."""

import asyncio

from .. import aio
from ..cluster.connect import hub_of
from ..data.optional_imports import needed
from ..engine.result_stream import Outbox
from ..run import runner
from ..run.setup import RunSetup


class RayRun:
    """This process posts the inputs and collects the results; agents run in actors, one for each node."""

    def __init__(self, setup: RunSetup) -> None:
        self._setup = setup

    async def drive(self, outbox: Outbox) -> None:
        """Raises SpecError, BackendError, RunStopped and StoreError."""
        setup = self._setup
        what = f"cluster={setup.spec.together.cluster!r}"
        await asyncio.to_thread(needed, "ray", what, "'batch-agent[ray]'")
        from .coordinator import RayHub  # an extra
        from .deployment import Place

        place = Place(setup)
        hub = hub_of(setup.spec) or RayHub(place.hub)
        try:
            with aio.ungrouped():
                async with asyncio.TaskGroup() as group:
                    working = group.create_task(place.work())
                    await runner.run(setup, outbox, hub=hub, works=False)
                    working.cancel()
        finally:
            await place.leave()
