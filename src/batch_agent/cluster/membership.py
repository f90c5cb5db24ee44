"""One worker of a run: what it holds, and how it stays alive.

Last words to a hub, from whoever goes.
"""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from .. import aio
from ..core.coordinator import Coordinator, Cursor, Lease, Updates
from ..core.errors import LeaseLost, StoreError

_log = logging.getLogger("batch_agent")
_LONGEST = 5.0
"""Seconds."""


async def best_effort(words: Awaitable[object]) -> None:
    """Never raises, and never waits for long: what is not said, others find out when a lease runs out."""
    try:
        async with asyncio.timeout(_LONGEST):
            await words
    except (StoreError, TimeoutError) as error:
        _log.warning("A worker could not say that it goes; its leases run out by themselves. %s", error)


_RENEWALS = 3
"""In the time that a lease lasts."""
_NEWS = 5.0
"""Seconds that are waited for news at a time."""

Read = Callable[[Updates], None]


def worker_name() -> str:
    """Another one for each process and each run in it; people can tell from it where the worker is."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


class Membership:
    """Holds leases, and renews them. What was handed to another worker is not held any more."""

    def __init__(self, hub: Coordinator, name: str, ttl: float, *, hears_endings: bool = True) -> None:
        """`ttl`: seconds of a lease; a worker that is not heard of for so long is taken to be gone."""
        self._hears_endings = hears_endings
        self.hub = hub
        self.name = name
        self.ttl = ttl
        self._tokens: dict[str, int] = {}
        self._renewed = aio.now()
        self._readers: list[Read] = []

    def token(self, key: str) -> int:
        """Of an agent, or of the one that a part belongs to. Raises LeaseLost."""
        token = self._tokens.get(key.partition(".")[0])
        if token is None:
            raise LeaseLost(f"Another worker goes on with agent {key}: this one was not heard of for too long.")
        return token

    def holds(self, key: str) -> bool:
        return key.partition(".")[0] in self._tokens

    def drop(self, key: str) -> None:
        """It is not held any more: it has ended, or another one has it."""
        self._tokens.pop(key.partition(".")[0], None)

    async def lease(self, max_jobs: int, wait: float) -> list[Lease]:
        """Raises StoreError."""
        if aio.now() - self._renewed > self.ttl / 2:  # it was asleep: what is still its own must not look abandoned
            await self.renew()
        return await self.hub.lease(self.name, max_jobs, ttl=self.ttl, wait=wait)

    def hold(self, lease: Lease) -> None:
        """It is renewed from now on, and what is written of it carries its token."""
        self._tokens[lease.job.key] = lease.token

    async def renew(self) -> None:
        held = dict(self._tokens)
        began = aio.now()
        for key in await self.hub.renew(self.name, held, ttl=self.ttl):
            if self._tokens.get(key) == held[key]:
                self.drop(key)
        self._renewed = began

    def on_news(self, read: Read) -> None:
        """From now on, `read` gets whatever there is."""
        self._readers.append(read)

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """For as long as the block runs. Raises StoreError from it when the hub is gone for good. What is held at its
        end is given back."""
        await self.hub.renew(self.name, {}, ttl=self.ttl)
        after = await self.hub.position(completions=self._hears_endings)
        try:
            async with _beside(self._keep_alive(), self._read(after)):
                yield
        finally:
            self._tokens.clear()
            await best_effort(self.hub.leave(self.name))

    async def _keep_alive(self) -> None:
        while True:  # until it is cancelled with the run
            await asyncio.sleep(self.ttl / _RENEWALS)
            await self.renew()

    async def _read(self, after: Cursor) -> None:
        while True:  # until it is cancelled with the run
            news = await self.hub.poll(after, wait=_NEWS)
            after = news.after
            for read in self._readers:
                read(news)


@asynccontextmanager
async def _beside(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Does `work` while the block runs, and calls it off with it. What the work raises ends the block."""
    with aio.ungrouped():
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
            yield
            for task in tasks:
                task.cancel()
