"""Shared KV cache of a server that several workers use: one account for all of them, as a document of the
coordinator."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

import orjson

from .. import aio
from ..core.coordinator import Document, Documents
from ..core.errors import StoreError
from ..engine.pool_residency import PoolResidency
from ..engine.residency import Residency
from ..schedule.kv_account import NO_GRANT, KvAccount, KvGrant, grant
from ..schedule.kv_ledger import LedgerObservations
from .document_change import ContentionError, change, retry_contention
from .membership import best_effort
from .shared_limits import CALM_SHARE, SAFETY_FACTOR, renewal_interval

_log = logging.getLogger("batch_agent")
_DRIFT = 0.25
"""The entry is also renewed when the number of residents has changed by more than this share."""


@asynccontextmanager
async def share_kv_caches(
    documents: Documents,
    worker: str,
    residencies: Mapping[str, Residency | PoolResidency],
    *,
    ttl: float,
    interval: float = 0.5,
) -> AsyncIterator[None]:
    """Admits agents by an account that all workers share, while the block runs. Residencies of the same name lead to
    the same server. Within the worker's grant, an agent is admitted at once; beyond it, by a transaction with the
    account, at the latest at the next renewal, every `interval` seconds. A worker that does not renew for `ttl` seconds
    loses its entry. Each endpoint of a pool has an account under its own name, including endpoints that join later.
    Raises StoreError."""
    async with AsyncExitStack() as stack:
        for name, residency in residencies.items():
            if isinstance(residency, PoolResidency):
                pool = PoolSharing(partial(KvSharing, documents, worker, ttl=ttl), name, interval)
                await stack.enter_async_context(pool.active(residency))
            else:
                sharing = KvSharing(documents, worker, name, residency, ttl)
                await stack.enter_async_context(sharing.active(interval))
        yield


class PoolSharing:
    """Sharing of the KV caches of a pool, whose endpoints may join and leave."""

    def __init__(self, share: "Callable[[str, Residency], KvSharing]", server: str, interval: float) -> None:
        """`share`: shares the account with this name."""
        self._share = share
        self._server = server
        self._interval = interval
        self._tasks: dict[Residency, asyncio.Task[None]] = {}

    @asynccontextmanager
    async def active(self, residency: PoolResidency) -> AsyncIterator[None]:
        """Raises StoreError."""
        first = {each: self._sharing(name, each) for name, each in residency.named_endpoints.items()}
        try:
            for each in first.values():
                await retry_contention(each.renew)
        except BaseException:
            for each in first.values():
                await each.leave()
            raise
        try:
            for endpoint, sharing in first.items():
                self._start(endpoint, sharing)
            residency.on_endpoint = self._on_endpoint
            yield
        finally:
            residency.on_endpoint = None
            for task in self._tasks.values():
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks.values())

    def _on_endpoint(self, name: str, endpoint: Residency, is_joining: bool) -> None:
        if is_joining:
            self._start(endpoint, self._sharing(name, endpoint))
        elif (task := self._tasks.pop(endpoint, None)) is not None:
            task.cancel()

    def _sharing(self, name: str, endpoint: Residency) -> "KvSharing":
        return self._share(f"{self._server} {name}", endpoint)

    def _start(self, endpoint: Residency, sharing: "KvSharing") -> None:
        self._tasks[endpoint] = asyncio.get_running_loop().create_task(sharing.run(self._interval))


class KvSharing:
    """One worker's share of an endpoint's KV cache.

    The grant shrinks to what residents use before an entry is written, and grows to the amount in the entry afterwards.
    The residents of a worker thus never use more than its entry shows, even if a reply of the coordinator is lost."""

    def __init__(self, documents: Documents, worker: str, endpoint: str, residency: Residency, ttl: float) -> None:
        self._documents = documents
        self._worker = worker
        self._document = f"kv {endpoint}"
        self._residency = residency
        self._ledger = residency.ledger
        self._ttl = ttl
        self._workers = 1
        self._wanted = asyncio.Event()
        self._stopping: asyncio.TimerHandle | None = None
        self._granted: KvGrant | None = None
        """Grant that takes effect once the entry is written; None if no entry was written."""
        self._observed = (0, 0)
        self._initial = self._ledger.learned
        self._ledger.observations = LedgerObservations()
        self._ledger.grant = NO_GRANT
        residency.ask_for_room = self._wanted.set

    @asynccontextmanager
    async def active(self, interval: float) -> AsyncIterator[None]:
        """Renews the entry while the block runs, and deletes it at the end. Raises StoreError."""
        await retry_contention(self.renew)
        renewing = asyncio.get_running_loop().create_task(self._renew_forever(interval))
        try:
            yield
        finally:
            renewing.cancel()
            try:
                await asyncio.wait([renewing])
            finally:
                await self.leave()

    async def run(self, interval: float) -> None:
        """Renews the entry until cancelled, then deletes it."""
        try:
            await self._renew_forever(interval)
        finally:
            await self.leave()

    async def renew(self) -> None:
        """Runs one transaction with the account. Raises StoreError."""
        began = aio.now()
        self._wanted.clear()
        await change(self._documents, self._document, self._edit)
        if aio.now() >= began + SAFETY_FACTOR * self._ttl:
            raise ContentionError("The coordinator responded so late that other workers may consider this one dead.")
        if self._granted is not None:
            self._postpone_stop(began)
            if self._ledger.observations is not None:
                self._ledger.observations.drop(*self._observed)
            self._residency.set_grant(self._granted)

    async def _renew_forever(self, interval: float) -> None:
        while True:  # until it is cancelled with the run
            pause = renewal_interval(interval, self._ttl, self._workers)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wanted.wait()
            try:
                await self.renew()
            except StoreError as error:  # an entry that is not renewed expires
                _log.debug("The KV cache could not be shared: %s", error)
                await asyncio.sleep(pause)

    async def _edit(self, document: Document) -> bytes | None:
        account, residency, ledger = _decode(document), self._residency, self._ledger
        self._workers = len(account.entries.keys() | {self._worker})
        self._granted = None
        if self._is_calm(account, document.now):
            return None
        others = account.others(self._worker)
        ledger.others = others
        ledger.learn(account.learned or self._initial, has_waiters=residency.has_waiters or others.waiting > 0)
        if ledger.observations is not None:
            self._observed = len(ledger.observations.turns), len(ledger.observations.growths)
        ledger.evict_overflow()
        if others.waiting:
            ledger.evict_for_others(aio.now())
        demand = residency.demand(aio.now())
        self._granted, entry = grant(account, self._worker, residency.use(), demand, document.now)
        ledger.grant = KvGrant(min(demand.required, self._granted.tokens), self._granted.max_residents)
        return _encode(account.with_entry(self._worker, replace(entry, until=document.now + self._ttl), ledger.learned))

    def _is_calm(self, account: KvAccount, now: float) -> bool:
        """Whether the entry can stay unchanged."""
        entry, observations = account.entries.get(self._worker), self._ledger.observations
        residents = self._ledger.residents
        return (
            entry is not None
            and abs(residents - entry.use.residents) <= max(1, _DRIFT * residents)
            and entry.until - now >= CALM_SHARE * self._ttl
            and not self._residency.has_waiters
            and not account.others(self._worker).waiting
            and not entry.use.waiting
            and not (observations is not None and any(observations.turns))
        )

    def _postpone_stop(self, began: float) -> None:
        if self._stopping is not None:
            self._stopping.cancel()
        self._stopping = asyncio.get_running_loop().call_at(began + SAFETY_FACTOR * self._ttl, self._stop)

    def _stop(self) -> None:
        """Revokes the grant, because other workers may soon consider this one dead."""
        self._ledger.grant = NO_GRANT

    async def leave(self) -> None:
        """Deletes the entry."""
        if self._stopping is not None:
            self._stopping.cancel()
        self._stop()
        await best_effort(change(self._documents, self._document, self._without))

    async def _without(self, document: Document) -> bytes | None:
        account = _decode(document)
        return _encode(account.without(self._worker)) if self._worker in account.entries else None


def _decode(document: Document) -> KvAccount:
    try:
        return KvAccount.from_json(None if document.data is None else orjson.loads(document.data), document.now)
    except (ValueError, TypeError) as error:
        raise StoreError(
            "The shared KV account cannot be read. All workers of a run need the same version of batch_agent."
        ) from error


def _encode(account: KvAccount) -> bytes:
    return orjson.dumps(account.to_json())
