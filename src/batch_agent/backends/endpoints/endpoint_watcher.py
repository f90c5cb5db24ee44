"""Watch of the sources of an endpoint pool: endpoints join and leave while the pool is open."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import count

from ...core.errors import BackendError, SpecError
from ...core.options.backend_settings import NamedBackend, has_source, settings_of
from ...core.protocols.backend import Backend
from ...schedule.retry import Backoff
from .endpoint_identity import check_distinct, identify
from .endpoint_pool import EndpointPool, Notify
from .endpoint_sources import endpoints_from, source_of
from .pool_member import connect_member
from .pool_membership import MembershipChange, PoolMembership

_log = logging.getLogger("batch_agent")
_RETRY = Backoff(first=1.0, ceiling=60.0)
"""Between two attempts to connect to a newcomer: a server that loads its weights may be listed minutes before it
responds."""
_MAX_OPENING = 32
"""Newcomers that are probed at the same time."""
_STATIC = -1
"""The source of the endpoints that are given by themselves."""

OpenEndpoint = Callable[[NamedBackend], Awaitable[Backend]]


async def open_watched_pool(given: Sequence[NamedBackend], open_endpoint: OpenEndpoint, notify: Notify) -> EndpointPool:
    """Opens a pool of the endpoints that are given, and of those that sources list now. The sources are watched until
    the pool is closed. Raises SpecError and BackendError."""
    watcher = EndpointWatcher(given, open_endpoint, notify)
    pool = await EndpointPool.open(await watcher.list_first(), watcher.open, notify)
    watcher.start(pool)
    return pool


class EndpointWatcher:
    """Applies what sources list to a pool. An endpoint joins when it has responded, drains when it is no longer listed,
    and leaves when its last request is answered. A source that fails changes nothing."""

    def __init__(self, given: Sequence[NamedBackend], open_endpoint: OpenEndpoint, notify: Notify) -> None:
        self._static = [each for each in given if not has_source(each)]
        self._sources = [(source_of(each), each) for each in given if has_source(each)]
        patience = [source.patience for source, _ in self._sources]
        self._membership: PoolMembership[str, int] = PoolMembership({_STATIC: 1} | dict(enumerate(patience)))
        self._open_endpoint = open_endpoint
        self._notify = notify
        self._labels: dict[tuple[str | None, ...], str] = {}
        self._backends: dict[str, NamedBackend] = {}
        """Every endpoint that was listed so far, by the label that is its alone."""
        self._keys: Counter[str] = Counter()
        """Endpoints with the same URL, which have different keys."""
        self._joining: dict[str, asyncio.Task[None]] = {}
        self._opening = asyncio.Semaphore(_MAX_OPENING)
        self._watching: asyncio.Task[None] | None = None

    async def list_first(self) -> list[str]:
        """The labels of the endpoints at the start. Raises SpecError and BackendError."""
        found = list(self._static)
        self._membership.on_listing(_STATIC, map(self._label, found))
        for index, (source, given) in enumerate(self._sources):
            endpoints = await endpoints_from(source, given)
            self._membership.on_listing(index, map(self._label, endpoints))
            found += endpoints
        check_distinct(found)
        return list(self._backends)

    async def open(self, label: str) -> Backend:
        return await self._open_endpoint(self._backends[label])

    def start(self, pool: EndpointPool) -> None:
        self._watching = asyncio.get_running_loop().create_task(self._watch(pool))
        pool.on_close = self.stop

    async def stop(self) -> None:
        if self._watching is None:
            return
        if self._watching.done() and not self._watching.cancelled():
            _log.error("The watch of the endpoints failed and was stopped", exc_info=self._watching.exception())
        self._watching.cancel()
        await asyncio.wait([self._watching])

    async def _watch(self, pool: EndpointPool) -> None:
        async with asyncio.TaskGroup() as group:

            def on_drained(index: int) -> None:
                group.create_task(pool.remove(index))

            pool.routing.on_drained = on_drained
            try:
                for index in range(len(self._sources)):
                    group.create_task(self._follow(pool, group, index))
                await asyncio.Event().wait()  # until it is cancelled with the pool
            finally:
                pool.routing.on_drained = None

    async def _follow(self, pool: EndpointPool, group: asyncio.TaskGroup, index: int) -> None:
        problem, (source, given) = "", self._sources[index]
        while True:  # until it is cancelled with the pool
            await source.wait()
            try:
                labels = [self._label(each) for each in await endpoints_from(source, given)]
            except (SpecError, BackendError) as error:
                if str(error) != problem:
                    self._notify(f"The endpoints stay as they are: {error}")
                problem = str(error)
                continue
            problem = ""
            self._apply(pool, group, self._membership.on_listing(index, labels))

    def _apply(self, pool: EndpointPool, group: asyncio.TaskGroup, change: MembershipChange[str]) -> None:
        for label in change.removed:
            if (joining := self._joining.pop(label, None)) is not None:
                joining.cancel()
            else:
                pool.drain(label)
        for label in change.joined:
            if not pool.undrain(label):
                self._joining[label] = group.create_task(self._join(pool, label))

    async def _join(self, pool: EndpointPool, label: str) -> None:
        """Connects to a newcomer, as often as it takes. Cancelled when it is no longer listed."""
        for failures in count():
            try:
                async with self._opening:
                    backend = await connect_member(label, self.open, pool.traits)
            except BackendError as error:
                if failures == 0:
                    self._notify(f"The endpoint {label} is listed, but cannot be used yet; it is tried again: {error}")
                await asyncio.sleep(_RETRY.delay(failures))
            else:
                del self._joining[label]
                pool.join(label, self.open, backend)
                return

    def _label(self, endpoint: NamedBackend) -> str:
        """The name of an endpoint. One whose URL has several keys has a number behind it. Raises SpecError."""
        identity = identify(endpoint)
        if identity not in self._labels:
            url = settings_of(endpoint).label
            self._keys[url] += 1
            label = self._labels[identity] = f"{url} (key {self._keys[url]})" if self._keys[url] > 1 else url
            self._backends[label] = endpoint
        return self._labels[identity]
