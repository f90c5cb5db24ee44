"""Drives the engine of a worker or of a submitter that also works."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from .. import aio
from ..core.errors import LeaseLost
from ..core.results import AgentResult
from ..engine.engine import Engine
from .cluster_session import ClusterSession
from .leased_source import LeasedSource
from .submitter import Submitter


async def work_and_collect(engine: Engine, source: LeasedSource, submitter: Submitter) -> None:
    """Returns when every input of the submitter has its result and the agents that were started here for others have
    ended. Raises what either raises."""
    with aio.ungrouped():
        async with asyncio.TaskGroup() as group:
            group.create_task(engine.run())
            await submitter.collect()
            source.stop()


def complete_via(session: ClusterSession) -> Callable[[AgentResult], Awaitable[None]]:
    """Reports results to the coordinator, from which their submitters collect them."""

    async def end(result: AgentResult) -> None:
        with suppress(LeaseLost):  # another worker completes it
            await session.end(result)

    return end
