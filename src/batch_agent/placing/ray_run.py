"""A run whose agents are at work on a Ray cluster."""

import asyncio

from ..cluster.opening import hub_of
from ..data.extras import needed
from ..engine.failures import one_failure
from ..engine.stream import Outbox
from ..run.runner import Run
from ..run.setup import Preparation


class RayRun:
    """This process posts the inputs and collects the results; agents run in actors, one for each node."""

    def __init__(self, preparation: Preparation) -> None:
        self._preparation = preparation

    async def drive(self, outbox: Outbox) -> None:
        """Raises SpecError, BackendError, RunStopped and StoreError."""
        preparation = self._preparation
        what = f"cluster={preparation.spec.together.cluster!r}"
        await asyncio.to_thread(needed, "ray", what, "'batch-agent[ray]'")
        from .ray_hub import RayHub  # an extra
        from .ray_place import Place

        place = Place(preparation)
        hub = hub_of(preparation.spec) or RayHub(place.hub)
        try:
            with one_failure():
                async with asyncio.TaskGroup() as group:
                    working = group.create_task(place.work())
                    await Run(preparation, hub=hub, works=False).drive(outbox)
                    working.cancel()
        finally:
            await place.leave()
