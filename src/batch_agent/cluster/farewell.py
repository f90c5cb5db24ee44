"""Last words to a hub, from whoever goes."""

import asyncio
import logging
from collections.abc import Awaitable

from ..core.errors import StoreError

_log = logging.getLogger("batch_agent")
_LONGEST = 5.0
"""Seconds."""


async def farewell(words: Awaitable[object]) -> None:
    """Never raises, and never waits for long: what is not said, others find out when a lease runs out."""
    try:
        async with asyncio.timeout(_LONGEST):
            await words
    except (StoreError, TimeoutError) as error:
        _log.warning("A worker could not say that it goes; its leases run out by themselves. %s", error)
