"""A worker's membership in a run: leases and their renewal, and updates from the coordinator."""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

from .. import aio
from ..core.coordinator import Cursor, Lease, Updates, UpdateStream, WorkQueue
from ..core.errors import LeaseLost, StoreError
from ..plan.row_keys import row_key

_log = logging.getLogger("batch_agent")
_BEST_EFFORT_TIMEOUT = 5.0


async def best_effort(action: Awaitable[object]) -> None:
    """Runs an action without raising, and without blocking for long: whatever is not reported expires with its lease. A
    cancellation waits for the action, so that a worker stopped while it leaves still leaves."""
    reporting = asyncio.ensure_future(_try(action))
    try:
        await asyncio.shield(reporting)
    except asyncio.CancelledError:
        await asyncio.wait([reporting])
        raise


async def _try(action: Awaitable[object]) -> None:
    try:
        async with asyncio.timeout(_BEST_EFFORT_TIMEOUT):
            await action
    except (StoreError, TimeoutError) as error:
        _log.warning("A worker could not leave the run cleanly; its leases will expire. %s", error)


_RENEWALS = 3
"""Renewals per lease duration."""
_POLL_WAIT = 5.0
"""Seconds that one poll waits for updates."""

Read = Callable[[Updates], None]


def worker_name() -> str:
    """A readable name, unique per process and run, that begins with the host name."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


class Membership:
    """Holds leases and renews them. Drops agents that were handed to another worker."""

    def __init__(
        self, work: WorkQueue, updates: UpdateStream, name: str, ttl: float, *, wants_completions: bool = True
    ) -> None:
        """`ttl`: duration of a lease in seconds. A worker that does not renew within it is considered gone."""
        self._wants_completions = wants_completions
        self._work = work
        self._updates = updates
        self.name = name
        self.ttl = ttl
        self._tokens: dict[str, int] = {}
        self._renewed = aio.now()
        self._readers: list[Read] = []

    def token(self, key: str) -> int:
        """Fencing token of an agent, or of the agent to which a chunk belongs. Raises LeaseLost."""
        token = self._tokens.get(key) or self._tokens.get(key.partition(".")[0])
        if token is None:
            raise LeaseLost(
                f"Agent {row_key(key)} was handed to another worker: this one did not renew its lease in time."
            )
        return token

    def holds(self, key: str) -> bool:
        return key.partition(".")[0] in self._tokens

    def drop(self, key: str) -> None:
        """Forgets an agent that has ended or that another worker has."""
        self._tokens.pop(key.partition(".")[0], None)

    async def lease(self, max_jobs: int, wait: float, parts: float = 1) -> list[Lease]:
        """Raises StoreError."""
        if (
            aio.now() - self._renewed > self.ttl / 2
        ):  # after a suspension of the process: renew first, so that its leases do not look expired
            await self.renew()
        return await self._work.lease(self.name, max_jobs, ttl=self.ttl, wait=wait, parts=parts)

    def hold(self, lease: Lease) -> None:
        """Starts to renew the lease. Writes for the agent carry its token."""
        self._tokens[lease.job.key] = lease.token

    async def release(self, tokens: Mapping[str, int]) -> None:
        """Returns agents that this worker does not run. Raises StoreError."""
        await self._work.release(self.name, tokens)

    async def renew(self) -> None:
        held = dict(self._tokens)
        began = aio.now()
        for key in await self._work.renew(self.name, held, ttl=self.ttl):
            if self._tokens.get(key) == held[key]:
                self.drop(key)
        self._renewed = began

    def on_updates(self, read: Read) -> None:
        """Registers a reader that receives all further updates."""
        self._readers.append(read)

    @asynccontextmanager
    async def active(self) -> AsyncIterator[None]:
        """Renews leases and reads updates while the block runs. Raises StoreError in the block if the coordinator is
        lost. Leases still held at its end are released."""
        await self._work.renew(self.name, {}, ttl=self.ttl)
        after = await self._updates.position(completions=self._wants_completions)
        try:
            async with _in_background(self._keep_alive(), self._read(after)):
                yield
        finally:
            self._tokens.clear()
            await best_effort(self._work.leave(self.name))

    async def _keep_alive(self) -> None:
        while True:  # until it is cancelled with the run
            await asyncio.sleep(self.ttl / _RENEWALS)
            await self.renew()

    async def _read(self, after: Cursor) -> None:
        while True:  # until it is cancelled with the run
            updates = await self._updates.poll(after, wait=_POLL_WAIT)
            after = updates.after
            for read in self._readers:
                read(updates)


@asynccontextmanager
async def _in_background(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs `work` in the background of the block, and cancels it at its end. An exception of `work` ends the block."""
    with aio.ungrouped():
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
            yield
            for task in tasks:
                task.cancel()
