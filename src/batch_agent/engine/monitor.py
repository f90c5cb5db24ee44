"""Monitoring of a run: samples the use of its limits, and polls the load of its server."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

from ..core.protocols.backend import ReportsLoad
from ..core.protocols.event_sink import EventSink
from .admission import AdmissionController

_INTERVAL = 1.0
_FIRST_INTERVAL = 0.1
"""Short, so that short runs have samples too; the interval then doubles."""


@asynccontextmanager
async def sample_gauges(admission: AdmissionController, backend: str, events: EventSink) -> AsyncIterator[None]:
    """Emits samples of the use of the limits while the block runs."""
    sampling = asyncio.get_running_loop().create_task(_sample(admission, backend, events))
    try:
        yield
    finally:
        sampling.cancel()
        await asyncio.wait([sampling])


async def _sample(admission: AdmissionController, backend: str, events: EventSink) -> None:
    interval = _FIRST_INTERVAL
    while True:  # until it is cancelled with the run
        await asyncio.sleep(interval)
        interval = min(_INTERVAL, 2 * interval)
        events.emit(admission.sample(backend))


_log = logging.getLogger("batch_agent")
_POLL_INTERVAL = 0.5
_FIRST_POLL_AFTER = 0.1
"""Early in a run little is known; the interval then doubles."""
_COST_FACTOR, _MAX_POLL_INTERVAL = 20, 5.0
"""A busy server answers late, and its metrics cost it time: the interval is this many times the duration of the last
poll, up to this many seconds."""
_EARLY_POLLS = 8
"""Polls that are made regardless of their cost: the limit doubles with each until it reaches the server's."""


@asynccontextmanager
async def monitor_load(backend: object, admission: AdmissionController) -> AsyncIterator[None]:
    """Polls the load of the backend while the block runs, if the backend reports it."""
    polling = None
    if isinstance(backend, ReportsLoad):
        polling = asyncio.get_running_loop().create_task(_poll(backend, admission))
    try:
        yield
    finally:
        if polling is not None:
            if polling.done():
                _log.error("Polling the load of the backend failed and was stopped", exc_info=polling.exception())
            polling.cancel()
            await asyncio.wait([polling])
        await admission.aclose()


async def _poll(backend: ReportsLoad, admission: AdmissionController) -> None:
    interval, now = _FIRST_POLL_AFTER, asyncio.get_running_loop().time
    for poll in count(1):  # until it is cancelled with the run
        await asyncio.sleep(interval)
        started = now()
        load = await backend.load()
        at_least = min(_MAX_POLL_INTERVAL, _COST_FACTOR * (now() - started)) if poll >= _EARLY_POLLS else 0.0
        interval = max(min(_POLL_INTERVAL, 2 * interval), at_least)
        if load is not None:
            admission.on_load(load)
