"""Tells, while a run is under way, how full its limits are."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..core.interfaces import EventSink
from .gate import Gate

_INTERVAL = 1.0
_AT_FIRST = 0.1
"""Short runs shall have a few, too; the time between samples then doubles."""


@asynccontextmanager
async def sampling(gate: Gate, backend: str, events: EventSink) -> AsyncIterator[None]:
    """For as long as the block runs."""
    telling = asyncio.get_running_loop().create_task(_tell(gate, backend, events))
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.wait([telling])


async def _tell(gate: Gate, backend: str, events: EventSink) -> None:
    interval = _AT_FIRST
    while True:  # until it is cancelled with the run
        await asyncio.sleep(interval)
        interval = min(_INTERVAL, 2 * interval)
        events.emit(gate.sample(backend))
