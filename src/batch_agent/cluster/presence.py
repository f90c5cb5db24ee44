"""Who may still post work: workers stay for as long as there is somebody."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import orjson

from .. import aio
from ..core.coordinator import Coordinator
from .membership import best_effort

_NAME = "callers"
_TRIES = 20
_RENEWALS = 3

Until = dict[str, float]
"""By the hub's clock."""


class ClientPresence:
    """The callers of a run, each for as long as it is heard of."""

    def __init__(self, hub: Coordinator, ttl: float) -> None:
        self._hub = hub
        self._ttl = ttl

    async def are_there(self) -> bool:
        known = await self._hub.read(_NAME)
        return any(until > known.now for until in _read(known.data).values())

    @asynccontextmanager
    async def with_me(self, name: str) -> AsyncIterator[None]:
        """One more, for as long as the block runs. Raises StoreError."""
        await self._change(lambda callers, now: callers.__setitem__(name, now + self._ttl))
        try:
            with aio.ungrouped():
                async with asyncio.TaskGroup() as group:
                    staying = group.create_task(self._stay(name))
                    yield
                    staying.cancel()
        finally:
            await best_effort(self._change(lambda callers, now: callers.pop(name, None)))

    async def _stay(self, name: str) -> None:
        while True:  # until it is cancelled with the block
            await asyncio.sleep(self._ttl / _RENEWALS)
            await self._change(lambda callers, now: callers.__setitem__(name, now + self._ttl))

    async def _change(self, change: Callable[[Until, float], object]) -> None:
        for _ in range(_TRIES):
            known = await self._hub.read(_NAME)
            callers = {name: until for name, until in _read(known.data).items() if until > known.now}
            change(callers, known.now)
            if await self._hub.compare_and_set(_NAME, known.data, orjson.dumps(callers)):
                return


def _read(data: bytes | None) -> Until:
    callers: Until = {} if data is None else orjson.loads(data)
    return callers
