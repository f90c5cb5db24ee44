"""Tells, while a run is under way, how full its limits are.

Looks at the server's load while a run is under way, and passes on what it shows.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

from ..core.protocols import EventSink, ReportsLoad
from .admission import AdmissionController

_INTERVAL = 1.0
_AT_FIRST = 0.1
"""Short runs shall have a few, too; the time between samples then doubles."""


@asynccontextmanager
async def sample_gauges(gate: AdmissionController, backend: str, events: EventSink) -> AsyncIterator[None]:
    """For as long as the block runs."""
    telling = asyncio.get_running_loop().create_task(_tell(gate, backend, events))
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.wait([telling])


async def _tell(gate: AdmissionController, backend: str, events: EventSink) -> None:
    interval = _AT_FIRST
    while True:  # until it is cancelled with the run
        await asyncio.sleep(interval)
        interval = min(_INTERVAL, 2 * interval)
        events.emit(gate.sample(backend))


_log = logging.getLogger("batch_agent")
_POLL_INTERVAL = 0.5
_FIRST_POLL_AFTER = 0.1
"""Early in a run little is known; the time between looks then doubles."""
_TIMES_ITS_COST, _SELDOM = 20, 5.0
"""A server that has its hands full answers late, and what it spends on its numbers its requests wait for: the time
between two looks is so many times what the last one took, up to these seconds."""
_EARLY = 8
"""Looks that come whatever they cost: the limit doubles at each of them until it is what the server can take."""


@asynccontextmanager
async def monitor_load(backend: object, gate: AdmissionController) -> AsyncIterator[None]:
    """For as long as the block runs. A backend that tells nothing is not asked."""
    looking = None
    if isinstance(backend, ReportsLoad):
        looking = asyncio.get_running_loop().create_task(_look(backend, gate))
    try:
        yield
    finally:
        if looking is not None:
            if looking.done():
                _log.error("The backend failed to tell its load; it was not asked again", exc_info=looking.exception())
            looking.cancel()
            await asyncio.wait([looking])
        await gate.aclose()


async def _look(backend: ReportsLoad, gate: AdmissionController) -> None:
    interval, now = _FIRST_POLL_AFTER, asyncio.get_running_loop().time
    for look in count(1):  # until it is cancelled with the run
        await asyncio.sleep(interval)
        asked = now()
        load = await backend.load()
        seldom = min(_SELDOM, _TIMES_ITS_COST * (now() - asked)) if look >= _EARLY else 0.0
        interval = max(min(_POLL_INTERVAL, 2 * interval), seldom)
        if load is not None:
            gate.looked(load)
