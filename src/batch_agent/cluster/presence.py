"""Registry of a run's submitters. Workers stay as long as a submitter may still submit work."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import orjson

from .. import aio
from ..core.coordinator import Document, Documents
from .document_change import change, retry_contention
from .membership import best_effort

_NAME = "callers"
_RENEWALS = 3

Until = dict[str, float]
"""Expiry time of each entry, by the coordinator's clock."""


class ClientPresence:
    """The registered submitters of a run, each until its entry expires."""

    def __init__(self, documents: Documents, ttl: float) -> None:
        self._documents = documents
        self._ttl = ttl

    async def any_present(self) -> bool:
        document = await self._documents.read(_NAME)
        return any(until > document.now for until in _read(document.data).values())

    @asynccontextmanager
    async def present(self, name: str) -> AsyncIterator[None]:
        """Registers this process for the duration of the block. Raises StoreError."""
        await self._change(lambda callers, now: callers.__setitem__(name, now + self._ttl))
        try:
            with aio.ungrouped():
                async with asyncio.TaskGroup() as group:
                    renewing = group.create_task(self._renew(name))
                    yield
                    renewing.cancel()
        finally:
            await best_effort(self._change(lambda callers, now: callers.pop(name, None)))

    async def _renew(self, name: str) -> None:
        while True:  # until it is cancelled with the block
            await asyncio.sleep(self._ttl / _RENEWALS)
            await self._change(lambda callers, now: callers.__setitem__(name, now + self._ttl))

    async def _change(self, edit: Callable[[Until, float], object]) -> None:
        """Raises StoreError, also if other processes keep changing the document first."""

        async def without_expired(document: Document) -> bytes:
            callers = {name: until for name, until in _read(document.data).items() if until > document.now}
            edit(callers, document.now)
            return orjson.dumps(callers)

        await retry_contention(lambda: change(self._documents, _NAME, without_expired))


def _read(data: bytes | None) -> Until:
    callers: Until = {} if data is None else orjson.loads(data)
    return callers
