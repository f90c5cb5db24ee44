"""Endpoint pool: several endpoints of one model as one backend, with routing and failover.

Each turn goes to the endpoint that has its context in the cache, or to the least loaded one. Requests of an endpoint
that fails are sent to the others. Endpoints may join and leave while the pool is open."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence, Set
from functools import partial
from typing import Any, TypeVar

from ... import aio
from ...core.errors import BackendError, BatchAgentError, SpecError
from ...core.events import EndpointChanged, EndpointState
from ...core.messages import User
from ...core.protocols.backend import (
    Backend,
    CountsTokens,
    EncodesRequests,
    PaceKind,
    RendersPrompts,
    ReportsLoad,
    ServerLoad,
    ServiceLimit,
    TakesHints,
    Traits,
)
from ...core.requests import ContextHint, EncodedRequest, Request
from ...schedule.endpoints.routing import Routing, Ticket
from ...schedule.pace import EndpointPaces, Grant
from . import pool_member
from .endpoint_health import EndpointHealth
from .pool_member import OpenBackend, PoolEndpoint, combined_traits, kv_capacities, with_capacity
from .pooled_request import PooledRequest

_log = logging.getLogger("batch_agent")
T = TypeVar("T")
Notify = Callable[[str], None]


class EndpointPool:
    """Backend that distributes requests over endpoints of the same model."""

    def __init__(self, members: Sequence[PoolEndpoint], traits: Traits, notify: Notify) -> None:
        self.traits = traits
        self.members = list(members)
        self._indices = {member.url: index for index, member in enumerate(members)}
        self.routing = Routing([member.url for member in members])
        self.health = EndpointHealth(self.members, self.routing, notify)
        self.on_routed: Callable[[str, str], None] | None = None
        self.on_close: Callable[[], Awaitable[None]] | None = None
        """Ends the watch of the sources of its endpoints, if there is one."""
        self._observers: list[Callable[[EndpointChanged], None]] = []
        self._prefixes = PromptPrefixes()
        self._sessions: dict[str, set[int]] = {}
        """Endpoints that keep a session for each agent."""
        self._connecting: set[asyncio.Task[None]] = set()
        self.paces = self._pace_endpoints() if traits.reports_rate_limits else None

    @classmethod
    async def open(cls, urls: Sequence[str], open_backend: OpenBackend, notify: Notify) -> "EndpointPool":
        """Connects to all endpoints. An endpoint that cannot be reached is tried again later. Raises SpecError for
        endpoints that cannot form a pool, and BackendError if none can be reached."""
        opened: list[Backend] = []
        try:
            found = await _open_all(open_backend, urls, opened)
        except BaseException:
            await _run_all([each.aclose() for each in opened])
            raise
        backends = [None if isinstance(each, BatchAgentError) else each for each in found]
        try:
            for each in found:
                if isinstance(each, SpecError):
                    raise each
            if not any(backends):
                raise _all_failed_error(urls, [each for each in found if isinstance(each, BackendError)])
            traits = combined_traits(urls, [None if each is None else each.traits for each in backends])
        except BatchAgentError:
            await _run_all([each.aclose() for each in backends if each is not None])
            raise
        members = [PoolEndpoint(url, open_backend, each) for url, each in zip(urls, backends, strict=True)]
        pool = cls(members, traits, notify)
        for index, each in enumerate(found):
            if isinstance(each, BackendError):
                pool.health.record_failure(pool.routing.sent(index, 1.0, aio.now()), index, each)
                members[index].last_error = str(each)
                notify(f"{urls[index]} cannot be used; its requests go to the other endpoints: {each}")
        return pool

    def _pace_endpoints(self) -> EndpointPaces:
        """Each endpoint has its own limits: deployments in several regions, or keys of several accounts."""
        reports = [each.backend is None or each.backend.traits.reports_rate_limits for each in self.members]
        paces = EndpointPaces(reports, self.routing.available)
        for index in range(len(self.members)):
            self._observe_limits(paces, index)
        return paces

    def _observe_limits(self, paces: EndpointPaces, index: int) -> None:
        member = self.members[index]
        member.on_limits = partial(self._on_limits, paces, index)
        member.observe_limits()

    @staticmethod
    def _on_limits(paces: EndpointPaces, index: int, limits: Mapping[PaceKind, ServiceLimit]) -> None:
        paces.report(index, limits, aio.now())

    def stream(self, request: Request) -> PooledRequest:
        return PooledRequest(self, request)

    def encode(self, request: Request) -> EncodedRequest:
        """The request as it is sent to the first endpoint that is connected."""
        for member in self.members:
            if isinstance(member.backend, EncodesRequests):
                return member.backend.encode(request)
        raise AssertionError("a pool has a connected endpoint when it is opened")

    async def load(self) -> ServerLoad | None:
        """The total load of the endpoints that report it."""
        loads = [load for load in await _run_all([_load(member) for member in self.members]) if load is not None]
        if not loads:
            return None
        usages = [load.kv_usage for load in loads if load.kv_usage is not None]
        tiers = [load.kv_host_tokens for load in loads]
        return ServerLoad(
            sum(load.running for load in loads),
            sum(load.waiting for load in loads),
            sum(usages) / len(usages) if usages else None,
            sum(load.preemptions for load in loads),
            sum(load.computed for load in loads),
            sum(tier for tier in tiers if tier is not None) if None not in tiers else None,
        )

    async def count_tokens(self, text: str) -> int | None:
        for index in self.routing.available(aio.now()):
            backend = self.members[index].backend
            if isinstance(backend, CountsTokens) and (tokens := await backend.count_tokens(text)) is not None:
                return tokens
        return None

    async def render_prompt(self, request: Request) -> bytes | None:
        for index in self.routing.available(aio.now()):
            backend = self.members[index].backend
            if isinstance(backend, RendersPrompts) and (ids := await backend.render_prompt(request)) is not None:
                return ids
        return None

    async def hint(self, hint: ContextHint) -> None:
        """Goes to the endpoint that has the agent's context."""
        home = self.routing.home(hint.agent)
        backend = None if home is None else self.members[home].backend
        if home is not None and isinstance(backend, TakesHints):
            if backend.traits.has_agent_sessions:
                self.add_session(hint.agent, home)
            await backend.hint(hint)

    def add_session(self, agent: str, index: int) -> None:
        """The endpoint keeps a session for the agent, which ends when the agent does."""
        self._sessions.setdefault(agent, set()).add(index)

    async def leave(self, agent: str) -> None:
        self.routing.forget_origin(agent)
        self.health.failures.pop(agent, None)
        if agent in self._sessions:
            backends = [self.members[index].backend for index in self._sessions.pop(agent)]
            await _run_all([each.leave(agent) for each in backends if each is not None])

    async def aclose(self) -> None:
        if self.on_close is not None:
            await self.on_close()
        await aio.cancel_all(self._connecting)
        await _run_all([each.backend.aclose() for each in self.members if each.backend is not None])

    def has_other(self, exclude: Set[int]) -> bool:
        """Whether a further endpoint is connected and takes requests."""
        return any(
            self.members[index].backend is not None and index not in exclude
            for index in self.routing.available(aio.now())
        )

    def connect(self, index: int, ticket: Ticket) -> None:
        """Connects to an endpoint in the background. `ticket`: of the request that was to go there."""
        task = asyncio.get_running_loop().create_task(self._connect(index, ticket))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, index: int, ticket: Ticket) -> None:
        try:
            await self.members[index].get_backend(self.traits)
        except BackendError as error:
            self.health.on_failure(ticket, index, "", error)
        finally:
            self.routing.abandoned(ticket, aio.now())  # connected: the next request shows whether it answers

    def join(self, url: str, open_backend: OpenBackend, backend: Backend) -> None:
        """A further endpoint, or one that had left, takes requests from now on. It must fit the others."""
        index = self._indices.get(url)
        if index is None:
            index = self._indices[url] = self.routing.add(url)
            self.members.append(PoolEndpoint(url, open_backend, backend))
            if self.paces is not None:
                self.paces.add(may_report=backend.traits.reports_rate_limits)
        else:
            self.members[index].rejoin(backend)
            self.routing.rejoin(index)
        if self.paces is not None:
            self._observe_limits(self.paces, index)
        self._changed(url, "joined")

    def drain(self, url: str) -> None:
        """The endpoint takes no new requests. Those in flight continue; then `routing.on_drained` is called."""
        self.routing.drain(self._indices[url])
        self._changed(url, "draining")

    def undrain(self, url: str) -> bool:
        """A draining endpoint takes requests again. False if it has left, or is unknown."""
        index = self._indices.get(url)
        if index is None or self.members[index].has_left:
            return False
        if self.routing.is_draining(index):
            self.routing.undrain(index)
            self._changed(url, "joined")
        return True

    async def remove(self, index: int) -> None:
        """Closes the connections of a drained endpoint, unless it takes requests again by now."""
        member = self.members[index]
        if member.has_left or not self.routing.is_draining(index) or self.routing.requests(index):
            return
        backend = member.leave()
        self.routing.leave(index)
        self._changed(member.url, "left")
        if backend is not None:
            await backend.aclose()

    def observe_endpoints(self, observer: Callable[[EndpointChanged], None]) -> Callable[[], None]:
        self._observers.append(observer)
        return lambda: self._observers.remove(observer)

    def _changed(self, url: str, state: EndpointState) -> None:
        serving = [each for index, each in enumerate(self.members) if self.health.is_serving(index)]
        known = [each.backend.traits for each in serving if each.backend is not None]
        if known:
            self.traits = with_capacity(self.traits, known, len(serving))
        index = self._indices[url]
        backend = self.members[index].backend
        kv_tokens = None if backend is None else backend.traits.kv_tokens
        change = EndpointChanged(url, state, len(serving), self.routing.requests(index), kv_tokens)
        _log.info("%s", change)
        for observer in self._observers:
            observer(change)

    @property
    def names(self) -> list[str]:
        """The endpoints that take requests, or will when they are up again."""
        return [each.url for index, each in enumerate(self.members) if self.health.is_serving(index)]

    def unavailable(self) -> tuple[str, ...]:
        return self.health.unavailable()

    @property
    def kv_capacities(self) -> dict[str, int] | None:
        return kv_capacities(
            {
                each.url: None if each.backend is None else each.backend.traits
                for index, each in enumerate(self.members)
                if self.health.is_serving(index)
            }
        )

    def assign(self, agent: str, endpoint: str) -> None:
        if endpoint in self._indices:
            self.routing.assign(agent, self._indices[endpoint])

    def is_available(self, endpoint: str) -> bool:
        index = self._indices.get(endpoint)
        return index is not None and self.routing.is_available(index, aio.now())

    def expected_wait(self, endpoint: str, requests: int) -> float:
        index = self._indices.get(endpoint)
        if index is None:
            return float("inf")
        further = max(1, requests - self.routing.requests(index))
        return self.routing.expected_wait(index, float(further), aio.now())

    def choose(self, request: Request, now: float, exclude: Set[int], grant: Grant | None = None) -> int | None:
        """The endpoint for a request. `grant`: of the pace."""
        agent, index = request.agent, None
        prefixes, draw = self._prefixes.of(request), (random.random(), random.random())  # noqa: S311
        is_plain = grant is None and agent not in self.health.failures
        for excluded in (exclude,) if is_plain else self._exclusions(agent, now, exclude, grant):
            index = self.routing.choose(1.0, now, prefixes=prefixes, origin=agent or None, exclude=excluded, draw=draw)
            if index is not None:
                break
        if index is not None:
            if grant is not None and self.paces is not None:
                self.paces.sent(grant, index, is_repeated=bool(exclude))
            if self.on_routed is not None:
                self.on_routed(agent, self.members[index].url)
        return index

    def _exclusions(self, agent: str, now: float, exclude: Set[int], grant: Grant | None) -> Sequence[Set[int]]:
        early = set[int]() if self.paces is None or grant is None else self.paces.early(grant, now)
        return self.health.exclusions(agent, exclude, early)


class PromptPrefixes:
    """Beginnings of a prompt that other agents may share, as hashes, the longest first: up to each reference, and the
    text before them. Most agents of a run share one text, which is hashed once."""

    def __init__(self) -> None:
        self._text = ""
        self._keys: tuple[int, ...] = ()

    def of(self, request: Request) -> tuple[int, ...]:
        first = request.messages[0] if request.messages else None
        if not isinstance(first, User) or not first.shared:
            return ()
        if not first.breaks:
            if len(self._text) != first.shared or not first.text.startswith(self._text):
                self._text = first.text[: first.shared]
                self._keys = (hash((0, self._text)),)
            return self._keys
        keys, key, start = tuple[int, ...](), 0, 0
        for end in (*first.breaks, first.shared):
            key, start = hash((key, first.text[start:end])), end
            keys = (key, *keys)
        return keys


async def _open_all(
    open_backend: OpenBackend, urls: Sequence[str], opened: list[Backend]
) -> list[Backend | BatchAgentError]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_try_open(open_backend, url, opened)) for url in urls]
        pending = set(tasks)
        while pending and not opened:
            pending = (await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED))[1]
        for task in (await asyncio.wait(pending, timeout=pool_member.START_TIMEOUT))[1] if pending else ():
            task.cancel()
    limit = pool_member.START_TIMEOUT
    return [pool_member.timeout_error(limit) if task.cancelled() else task.result() for task in tasks]


async def _try_open(open_backend: OpenBackend, url: str, opened: list[Backend]) -> Backend | BatchAgentError:
    try:
        backend = await open_backend(url)
    except BatchAgentError as error:
        return error
    opened.append(backend)
    return backend


async def _run_all(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in coroutines]
    return [task.result() for task in tasks]


async def _load(member: PoolEndpoint) -> ServerLoad | None:
    return await member.backend.load() if isinstance(member.backend, ReportsLoad) else None


def _all_failed_error(urls: Sequence[str], errors: Sequence[BackendError]) -> BackendError:
    problems = " ".join(f"{url}: {error}" for url, error in zip(urls, errors, strict=False))
    return BackendError(errors[0].kind, f"None of the {len(urls)} endpoints can be used. {problems}")
