"""The hub of a run, inside an actor."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from .. import aio
from ..cluster.memory_coordinator import MemoryCoordinator
from ..core.coordinator import Cursor, Updates
from ..core.errors import SpecError
from ..core.facts import Fact
from ..store.memory_store import MemoryStore
from ..store.sqlite import SqliteStore

_MOMENT = 0.02
"""Seconds for which news are gathered: a call costs the actor more than what it carries."""
_MOST_STORIES = 256
"""That go with one message."""

Stories = dict[str, tuple[Fact, ...]]


class CoordinatorActor:
    """Lives on the caller's node, where the checkpoint is, and ends with the caller. It knows workers by their seats,
    and callers by having none."""

    def __init__(self, checkpoint_dir: str | None) -> None:
        self._coordinator = MemoryCoordinator(
            MemoryStore() if checkpoint_dir is None else SqliteStore(Path(checkpoint_dir))
        )
        self._seats: dict[str, str] = {}
        """Who has each seat now."""
        self._joined: set[str] = set()
        self._asked: Counter[str] = Counter()

    async def open(self, sign: str | None) -> None:
        """`sign`: a file that the caller has left, for whoever is on another machine to see whether both see the same
        folder. Raises SpecError and StoreError."""
        if sign is not None and not await asyncio.to_thread(Path(sign).exists):
            raise SpecError(
                f"checkpoint_dir={str(Path(sign).parent)!r} is another folder on the head node of the cluster. Use one "
                "that both see, or store='redis://...', or start the run on the cluster itself, with cluster='ray'."
            )
        await self._coordinator.open()

    async def close(self) -> None:
        await self._coordinator.aclose()

    async def ask(self, method: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """One call of the hub."""
        self._asked[method] += 1
        return await getattr(self._coordinator, method)(*args, **options)

    async def renew(self, seat: str | None, worker: str, tokens: Mapping[str, int], ttl: float) -> frozenset[str]:
        """Ray starts a worker anew only when the one before it is gone: what that one held, others may have."""
        self._asked["renew"] += 1
        if seat is not None and worker not in self._joined:
            self._joined.add(worker)
            before, self._seats[seat] = self._seats.get(seat), worker
            if before is not None:
                await self._coordinator.leave(before)
        return await self._coordinator.renew(worker, tokens, ttl=ttl)

    async def publish(self, seat: str | None, data: bytes) -> None:
        self._asked["publish"] += 1
        await self._coordinator.publish(data if seat is None else _OfWorker(data))

    async def poll(self, seat: str | None, after: Cursor, wait: float) -> tuple[Updates, Stories]:
        """A worker is not woken for what only callers want to know. These get the facts of agents that have ended
        together with the news of it."""
        self._asked["poll"] += 1
        deadline = aio.now() + wait
        news = await self._coordinator.poll(after, wait=wait)
        while seat is not None and not _concerns_workers(news) and (left := deadline - aio.now()) > 0:
            after = news.after
            news = await self._coordinator.poll(after, wait=left)
        if news.completions or news.completed_calls or news.published:
            await asyncio.sleep(_MOMENT)
            news = await self._coordinator.poll(after, wait=0)
        if seat is not None:
            return replace(news, completions=(), published=_of_callers(news)), {}
        ended = islice(news.completions, _MOST_STORIES)
        stories = {ending.key: await self._coordinator.facts(ending.key) for ending in ended}
        return replace(news, published=tuple(map(bytes, news.published))), stories

    async def asked(self) -> dict[str, int]:
        """How often each method was called."""
        return dict(self._asked)


class _OfWorker(bytes):
    """What a worker tells."""


def _concerns_workers(news: Updates) -> bool:
    return bool(news.completed_calls or _of_callers(news))


def _of_callers(news: Updates) -> tuple[bytes, ...]:
    return tuple(told for told in news.published if not isinstance(told, _OfWorker))
