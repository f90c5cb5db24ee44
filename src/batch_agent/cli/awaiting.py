"""A worker that waits for its run: often it is started first."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from ..cluster.redis import runs_known
from ..core.errors import SpecError, StoreError
from ..core.hub import Hub
from .shared_run import COMMAND, SharedRun

_LOOK = 1.0
"""Seconds until it is looked for again, where nothing is heard."""


async def awaited(run: SharedRun, store: str, patience: float, tell: Callable[[str], None]) -> bytes | None:
    """What the run asks, as soon as there is something to do; None for one that is done, and that nobody has started
    again in `patience` seconds. Raises SpecError for one that nobody knows by then, or that cannot be joined."""
    now = asyncio.get_running_loop().time
    until = now() + patience
    async with run.hub() as hub:
        after, is_told = await hub.latest(), False
        while not await _has_work(run, hub):
            if (left := until - now()) <= 0:
                await _check_known(run, hub, store)
                return None
            if not is_told:
                tell(await _waiting(run, hub, store, patience))
                is_told = True
            after = (await hub.news(after, wait=min(left, _LOOK))).after
        command = (await hub.read(COMMAND)).data
    if command is None:
        raise SpecError(
            f"Run {run.name!r} at {run.place} was not started by `batch-agent run`. To join it, start the same program "
            "here that has started it, with the same store= and run_id=."
        )
    return command


async def _has_work(run: SharedRun, hub: Hub) -> bool:
    return await run.is_called(hub) or await hub.left() > 0


async def _waiting(run: SharedRun, hub: Hub, store: str, patience: float) -> str:
    if (await hub.read(COMMAND)).data is not None:
        return f"Run {run.name} at {run.place} has nothing to do. Waiting up to {patience:g} s for more ..."
    return f"Waiting up to {patience:g} s for run {run.name} at {run.place} ... {await _listed(store)}"


async def _check_known(run: SharedRun, hub: Hub, store: str) -> None:
    """Raises SpecError."""
    if (await hub.read(COMMAND)).data is None:
        raise SpecError(
            f"There is no run {run.name!r} at {run.place}. {await _listed(store)} A run is started with "
            f"batch-agent run --store {run.place} --run-id {run.name}"
        )


async def _listed(store: str) -> str:
    known: list[str] = []
    with suppress(StoreError):  # nobody needs it
        known = await runs_known(store)
    return f"Runs there: {', '.join(known)}." if known else "There are no runs there yet."
