"""A worker's part in a run that is shared."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from .. import aio
from ..core.errors import LeaseLost
from ..core.results import AgentResult
from ..engine.engine import Engine
from .leased_source import LeasedSource
from .session import ClusterSession
from .submitter import Submitter


async def work_and_collect(engine: Engine, source: LeasedSource, calling: Submitter) -> None:
    """Until every input of the caller has its result, and what was begun here for others is done. Raises what either
    raises."""
    with aio.ungrouped():
        async with asyncio.TaskGroup() as group:
            group.create_task(engine.run())
            await calling.collect()
            source.stop()


def ending_at(joined: ClusterSession) -> Callable[[AgentResult], Awaitable[None]]:
    """Hands results to whoever asked for them, wherever that is."""

    async def end(result: AgentResult) -> None:
        with suppress(LeaseLost):  # somebody else ends it
            await joined.end(result)

    return end
