"""Tool calls that one worker makes for all of them, shared limits of tools, and one order of references for all
prompts."""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any, TypeVar

import orjson

from .. import aio
from ..core.coordinator import CallTable, Document, Documents, permit_update
from ..core.errors import StoreError
from ..core.images import ImageRef
from ..core.messages import ToolSource
from ..core.shared_calls import CallOutcome, SharedRank
from .document_change import change

T = TypeVar("T")
Make = Callable[[], Awaitable[CallOutcome]]

_RECHECK_AFTER = 3.0
"""Seconds after which a call made by another worker is claimed again: that worker may be gone, or the update lost."""
_OUTAGE_PAUSE = 10.0
"""Seconds without attempts after the coordinator was unreachable."""
_MIN_TTL = 1.0
"""Minimum seconds for which waiting workers can fetch an outcome, even if later callers do not get it."""
_MAX_OUTCOME_BYTES = 1_000_000
"""Larger outcomes are not shared."""

_log = logging.getLogger("batch_agent")


class ClusterToolCalls:
    """Shared tool calls, for one worker. The worker that claims a call makes it and stores its outcome; the others
    wait. Outcomes are stored in the background, which delays no caller and continues if the agent leaves."""

    def __init__(self, table: CallTable, documents: Documents, worker: str) -> None:
        self._table = table
        self._worker = worker
        self._order = SharedReferenceOrder(documents)
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._making: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._permit_queues: dict[str, asyncio.Lock] = {}
        self._paused_until = -math.inf
        self._has_warned = False

    def on_completed(self, names: Iterable[str]) -> None:
        """Wakes up the callers that wait for these calls (`Updates.completed_calls`)."""
        for name in names:
            for updated in self._waiting.get(name, ()):
                updated.set()

    async def call(self, name: str, make: Make) -> tuple[CallOutcome, ToolSource]:
        waited_since: float | None = None
        with self._subscribed(
            name
        ) as updated:  # subscribe before the claim: its reply and updates may arrive in any order
            while not self._is_paused:
                updated.clear()
                claimed_at = aio.now()
                claimed = await self._claim(name)
                if claimed is True:
                    return await self._make(name, make), "executed"
                if claimed is not False:
                    found = _usable(decode(claimed), waited_since)  # None if the other worker's call timed out
                    if found is None:
                        break
                    return found, "cached" if waited_since is None else "shared"
                waited_since = claimed_at
                with suppress(TimeoutError):
                    async with asyncio.timeout(_RECHECK_AFTER):
                        await updated.wait()
        return await make(), "executed"

    async def rank(self, heading: str) -> SharedRank | None:
        if self._is_paused:
            return None
        try:
            return await self._order.rank(heading)
        except StoreError as error:
            self._pause(error)
            return None

    async def reserve_rate(self, name: str, *, interval: float, ahead: float) -> float | None:
        if self._is_paused:
            return None
        try:
            return await self._table.reserve_rate(name, interval=interval, ahead=ahead)
        except StoreError as error:
            self._pause(error)
            return None

    async def acquire_permit(self, name: str, limit: int) -> Callable[[], None] | None:
        async with self._permit_queues.setdefault(name, asyncio.Lock()):  # one call at a time asks for this process
            with self._subscribed(permit_update(name)) as updated:
                while not self._is_paused:
                    updated.clear()
                    if await self._permitted(name, limit):
                        return partial(self._return_permit, name)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_RECHECK_AFTER):
                            await updated.wait()
        return None

    async def aclose(self) -> None:
        """Stores pending outcomes if that is quickly possible. Call it after the last tool call, while the coordinator
        is open."""
        try:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=_RECHECK_AFTER)
        finally:
            unfinished = set(self._tasks)
            for task in unfinished:
                task.cancel()
            if unfinished:
                await asyncio.wait(unfinished)

    @contextmanager
    def _subscribed(self, name: str) -> Iterator[asyncio.Event]:
        updated = asyncio.Event()
        self._waiting.setdefault(name, set()).add(updated)
        try:
            yield updated
        finally:
            events = self._waiting[name]
            events.discard(updated)
            if not events:
                del self._waiting[name]

    async def _claim(self, name: str) -> bytes | bool:
        """Claims a call. If the caller is cancelled meanwhile, releases a granted claim."""
        claiming = self._spawn(self._claimed(name))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            self._spawn(self._unclaim(name, claiming))
            raise

    async def _claimed(self, name: str) -> bytes | bool:
        try:
            return await self._table.claim(name, self._worker)
        except StoreError as error:  # the claim may have been granted, so make and complete the call
            self._pause(error)
            return True

    async def _unclaim(self, name: str, claiming: "asyncio.Task[bytes | bool]") -> None:
        if await claiming is True and not self._making[name]:
            await self._complete(name, None)

    async def _permitted(self, name: str, limit: int) -> bool:
        """Acquires a permit. If the caller is cancelled meanwhile, returns a granted permit."""
        asking = self._spawn(self._ask_permit(name, limit))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            self._spawn(self._return_unused(name, asking))
            raise

    async def _ask_permit(self, name: str, limit: int) -> bool:
        try:
            return await self._table.acquire_permit(name, self._worker, limit)
        except StoreError as error:  # it may have been granted, so return it after the execution
            self._pause(error)
            return True

    async def _return_unused(self, name: str, asking: "asyncio.Task[bool]") -> None:
        if await asking:
            await self._release_permit(name)

    def _return_permit(self, name: str) -> None:
        self._spawn(self._release_permit(name))

    async def _release_permit(self, name: str) -> None:
        """Returns a permit, with retries: no other worker can take it while this one lives."""
        while True:
            try:
                return await self._table.release_permit(name, self._worker)
            except StoreError as error:
                self._pause(error)
                await asyncio.sleep(_OUTAGE_PAUSE)

    async def _make(self, name: str, make: Make) -> CallOutcome:
        outcome: CallOutcome | None = None
        self._making[name] += 1
        try:
            outcome = await make()
        finally:
            self._making[name] -= 1
            if outcome is not None or not self._making[name]:  # otherwise another caller here is still making it
                self._spawn(self._complete(name, outcome))
            if not self._making[name]:
                del self._making[name]
        return outcome

    async def _complete(self, name: str, outcome: CallOutcome | None) -> None:
        """Stores an outcome, with retries: no other worker can make the claimed call while this one lives."""
        until = aio.now() + (outcome.ttl if outcome is not None else 0.0)
        while True:
            ttl = until - aio.now()
            is_short_lived = ttl < _MIN_TTL
            data = encode(replace(outcome, ttl=0.0 if is_short_lived else ttl)) if outcome is not None else None
            if data is not None and len(data) > _MAX_OUTCOME_BYTES:
                data = None
            try:
                await self._table.complete(name, self._worker, data, ttl=_MIN_TTL if is_short_lived else ttl)
            except StoreError as error:
                self._pause(error)
                await asyncio.sleep(_OUTAGE_PAUSE)
            else:
                return

    def _spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Starts a task that is cancelled when this object is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @property
    def _is_paused(self) -> bool:
        return aio.now() < self._paused_until

    def _pause(self, error: StoreError) -> None:
        self._paused_until = aio.now() + _OUTAGE_PAUSE
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s Meanwhile, workers do not share tool calls, and each applies the limits of tools on its own.", error
            )


def encode(outcome: CallOutcome) -> bytes:
    ttl = None if math.isinf(outcome.ttl) else outcome.ttl
    return orjson.dumps([outcome.content, outcome.is_error, outcome.seconds, ttl, outcome.timed_out, outcome.images])


def decode(data: bytes) -> CallOutcome:
    content, is_error, seconds, ttl, timed_out, images = orjson.loads(data)
    found = tuple(ImageRef(**each) for each in images)
    return CallOutcome(content, is_error, seconds, math.inf if ttl is None else ttl, timed_out, found)


def _usable(outcome: CallOutcome, waited_since: float | None) -> CallOutcome | None:
    """Another worker's outcome with its remaining ttl, which is known only if this worker waited for it. None if the
    outcome is only for workers that waited, or if the other worker's call timed out, which this one's may not."""
    if outcome.timed_out:
        return None
    if waited_since is not None:
        return replace(outcome, ttl=max(0.0, outcome.ttl - (aio.now() - waited_since)))
    if not outcome.ttl:
        return None
    return outcome if math.isinf(outcome.ttl) else replace(outcome, ttl=0.0)


_NAME = "references"
_DIGEST_BYTES = 8
MAX_REFERENCES = 4_096
"""Maximum number of ranked references. Further ones share one rank, because the document is read and written as a
whole."""


class SharedReferenceOrder:
    """Ranks references by the order in which any worker first asked for them. Each worker asks the coordinator once per
    reference."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._ranks: dict[bytes, SharedRank] = {}
        self._new: set[bytes] = set()
        self._lock = asyncio.Lock()

    async def rank(self, heading: str) -> SharedRank:
        """Raises StoreError."""
        digest = blake2b(heading.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES).digest()
        if digest not in self._ranks:
            self._new.add(digest)
            async with self._lock:  # whatever is requested meanwhile is added in one go
                if digest not in self._ranks:
                    await self._append()
        return self._ranks.get(digest) or SharedRank(MAX_REFERENCES, is_elsewhere=False)

    async def _append(self) -> None:
        wanted = sorted(self._new)
        known: list[bytes] = []
        added: list[bytes] = []

        async def append(document: Document) -> bytes:
            data = document.data or b""
            known[:] = [data[at : at + _DIGEST_BYTES] for at in range(0, len(data), _DIGEST_BYTES)]
            present = set(known)
            added[:] = [each for each in wanted if each not in present][: max(0, MAX_REFERENCES - len(known))]
            return data + b"".join(added)

        await change(self._documents, _NAME, append)
        for rank, digest in enumerate([*known, *added]):
            self._ranks.setdefault(digest, SharedRank(rank, rank < len(known)))
        self._new.difference_update(wanted)
