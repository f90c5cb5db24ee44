"""Ray actor that holds the coordinator of a run."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any

from .. import aio
from ..cluster.memory.memory_coordinator import MemoryCoordinator
from ..core.coordinator import Cursor, Updates
from ..core.errors import SpecError
from ..core.facts import Fact
from ..store.memory_store import MemoryStore
from ..store.sqlite import SqliteStore

_BATCH_SECONDS = 0.02
"""Seconds for which updates are collected, because a call costs the actor more than its payload."""
_MAX_HISTORIES = 256
"""Maximum number of agents' histories in one response."""

Histories = dict[str, tuple[Fact, ...]]
"""Facts of agents, by key."""


class CoordinatorActor:
    """Coordinator in an actor on the submitter's node, where the checkpoint is. It ends with the submitter.

    Workers pass their rank, submitters None."""

    def __init__(self, checkpoint_dir: str | None) -> None:
        self._coordinator = MemoryCoordinator(
            MemoryStore() if checkpoint_dir is None else SqliteStore(Path(checkpoint_dir))
        )
        self._workers_by_rank: dict[str, str] = {}
        """The current worker of each rank."""
        self._joined: set[str] = set()

    async def open(self, marker: str | None) -> None:
        """Opens the coordinator. `marker`: a file that the submitter has created in checkpoint_dir; if it is missing
        here, the two machines do not share the directory. Raises SpecError and StoreError."""
        if marker is not None and not await asyncio.to_thread(Path(marker).exists):
            raise SpecError(
                f"checkpoint_dir={str(Path(marker).parent)!r} is not shared with the head node of the cluster. Use a "
                "shared directory or store='redis://...', or start the run on the cluster with cluster='ray'."
            )
        await self._coordinator.open()

    async def close(self) -> None:
        await self._coordinator.aclose()

    async def call_method(self, method: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Calls a method of the coordinator or of one of its parts, for example `documents.read`."""
        return await attrgetter(method)(self._coordinator)(*args, **options)

    async def renew(self, rank: str | None, worker: str, tokens: Mapping[str, int], ttl: float) -> frozenset[str]:
        """Renews leases. A new worker with a known rank replaces one whose process has ended, because Ray restarts only
        those. The leases of the predecessor are released."""
        if rank is not None and worker not in self._joined:
            self._joined.add(worker)
            predecessor, self._workers_by_rank[rank] = self._workers_by_rank.get(rank), worker
            if predecessor is not None:
                await self._coordinator.work.leave(predecessor)
        return await self._coordinator.work.renew(worker, tokens, ttl=ttl)

    async def publish(self, rank: str | None, data: bytes) -> None:
        await self._coordinator.updates.publish(data if rank is None else _WorkerMessage(data))

    async def poll(self, rank: str | None, after: Cursor, wait: float) -> tuple[Updates, Histories]:
        """Updates since a cursor. Updates that concern only submitters do not wake workers. Submitters receive the
        facts of completed agents together with the completions, which saves them one call per agent."""
        deadline = aio.now() + wait
        updates = await self._coordinator.updates.poll(after, wait=wait)
        while rank is not None and not _concerns_workers(updates) and (left := deadline - aio.now()) > 0:
            after = updates.after
            updates = await self._coordinator.updates.poll(after, wait=left)
        if updates.completions or updates.completed_calls or updates.published:
            await asyncio.sleep(_BATCH_SECONDS)
            updates = await self._coordinator.updates.poll(after, wait=0)
        if rank is not None:
            return replace(updates, completions=(), published=_from_submitters(updates)), {}
        reported = islice(updates.completions, _MAX_HISTORIES)
        histories = {each.key: await self._coordinator.facts.read(each.key) for each in reported}
        return replace(updates, published=tuple(map(bytes, updates.published))), histories


class _WorkerMessage(bytes):
    """A message published by a worker."""


def _concerns_workers(updates: Updates) -> bool:
    return bool(updates.completed_calls or _from_submitters(updates))


def _from_submitters(updates: Updates) -> tuple[bytes, ...]:
    return tuple(message for message in updates.published if not isinstance(message, _WorkerMessage))
