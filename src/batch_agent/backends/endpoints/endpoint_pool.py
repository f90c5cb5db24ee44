"""Endpoint pool: several endpoints of one model as one backend, with routing and failover.

Each turn goes to the endpoint that has its context in the cache, or to the least loaded one. Requests of an endpoint
that fails are sent to the others. Endpoints may join and leave while the pool is open."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from ... import aio
from ...core.errors import BackendError, BatchAgentError, ErrorKind, SpecError, WebPage
from ...core.events import EndpointChanged, EndpointState
from ...core.messages import User
from ...core.protocols import (
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
from ...core.requests import ContextHint, Delta, EncodedRequest, Finished, Request
from ...schedule.pace import EndpointPaces, Grant
from ...schedule.retry import is_overload_refusal
from ...schedule.routing import Routing, Ticket
from . import pool_member
from .failover import (
    EMPTY_ANSWER,
    ENDPOINT_FAULTS,
    MAX_BROKEN,
    REJECTIONS,
    AgentFailures,
    EndpointRejection,
    FailedAttempts,
    rejected_by_all,
    request_may_cause,
)
from .pool_member import OpenBackend, PoolEndpoint, combined_traits, kv_capacities, with_capacity

_TRANSIENT_FAULTS = frozenset({ErrorKind.SERVER, ErrorKind.UNAVAILABLE})
"""Errors that a healthy endpoint may respond with now and then."""
_HANG_SECONDS = 10.0
"""Seconds without a response after which a cancelled request counts against the endpoint."""
_MIN_HANG_SECONDS = 1.0
_HANG_FACTOR = 5.0
"""The same as a multiple of the slowest response so far, for turns with a timeout below `_HANG_SECONDS`."""

_log = logging.getLogger("batch_agent")
T = TypeVar("T")
Notify = Callable[[str], None]


class EndpointPool:
    """Backend that distributes requests over endpoints of the same model."""

    def __init__(self, members: Sequence[PoolEndpoint], traits: Traits, notify: Notify) -> None:
        self.traits = traits
        self.members = list(members)
        self._indices = {member.url: index for index, member in enumerate(members)}
        self._notify = notify
        self.routing = Routing([member.url for member in members])
        self.on_routed: Callable[[str, str], None] | None = None
        self.on_close: Callable[[], Awaitable[None]] | None = None
        """Ends the watch of the sources of its endpoints, if there is one."""
        self._observers: list[Callable[[EndpointChanged], None]] = []
        self._failures: dict[str, AgentFailures] = {}
        """Of the agents whose last request had no answer."""
        self._sessions: dict[str, set[int]] = {}
        """Endpoints that keep a session for each agent."""
        self._slowest_seconds = 0.0
        """Duration of the slowest response."""
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
                pool.record_failure(pool.routing.sent(index, 1.0, aio.now()), index, each)
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

    def stream(self, request: Request) -> "PooledRequest":
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
        self._failures.pop(agent, None)
        if agent in self._sessions:
            backends = [self.members[index].backend for index in self._sessions.pop(agent)]
            await _run_all([each.leave(agent) for each in backends if each is not None])

    async def aclose(self) -> None:
        if self.on_close is not None:
            await self.on_close()
        await _run_all([each.backend.aclose() for each in self.members if each.backend is not None])

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
        serving = [each for index, each in enumerate(self.members) if self._is_serving(index)]
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
        return [each.url for index, each in enumerate(self.members) if self._is_serving(index)]

    def _is_serving(self, index: int) -> bool:
        return not (self.members[index].has_left or self.routing.is_draining(index))

    @property
    def kv_capacities(self) -> dict[str, int] | None:
        return kv_capacities(
            {
                each.url: None if each.backend is None else each.backend.traits
                for index, each in enumerate(self.members)
                if self._is_serving(index)
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
        prefixes, draw = _prefixes(request), (random.random(), random.random())  # noqa: S311
        is_plain = grant is None and agent not in self._failures
        for excluded in (exclude,) if is_plain else self._exclusions(agent, now, exclude, grant):
            index = self.routing.choose(1.0, now, prefixes=prefixes, origin=agent or None, exclude=excluded, draw=draw)
            if index is not None:
                break
        if index is not None:
            if self.paces is not None and grant is not None:
                self.paces.sent(grant, index, is_repeated=bool(exclude))
            if self.on_routed is not None:
                self.on_routed(agent, self.members[index].url)
        return index

    def _exclusions(self, agent: str, now: float, exclude: Set[int], grant: Grant | None) -> Sequence[Set[int]]:
        """Endpoints that do not get a request, in the order of preference: one on which the agent failed before, or
        whose pace does not allow the request yet, is used only if there is no other."""
        early = set[int]() if self.paces is None or grant is None else self.paces.early(grant, now)
        failures = self._failures.get(agent)
        if failures is None:
            return exclude | early, exclude
        if failures.is_contained:
            exclude = exclude | (set(range(len(self.members))) - failures.broken)
        return exclude | failures.avoided | early, exclude | early, exclude | failures.avoided, exclude

    def record_failure(self, ticket: Ticket, index: int, error: BackendError, *, is_certain: bool = False) -> None:
        """Records a failed request. An endpoint that is down must accept a request to be up again: a rejection is not
        enough. `is_certain`: a rejection is known to be the endpoint's fault."""
        is_unreachable = error.kind is ErrorKind.UNAVAILABLE and error.status is None
        never_connected = self.members[index].backend is None  # several attempts to connect failed
        is_refused = is_unreachable or never_connected or error.kind is ErrorKind.TURN_TIMEOUT
        is_blamed = is_certain or not self.routing.is_up(index)
        is_endpoint_fault = error.kind in ENDPOINT_FAULTS or (error.kind in REJECTIONS and is_blamed)
        is_endpoint_fault = is_endpoint_fault and not is_overload_refusal(error)  # it is up, and overloaded
        is_endpoint_fault = is_endpoint_fault or never_connected
        has_answered = error.kind in _TRANSIENT_FAULTS and error.status is not None
        self.routing.failed(
            ticket, aio.now(), is_endpoint_fault=is_endpoint_fault, is_refused=is_refused, is_passing=has_answered
        )

    def blame(self, rejection: EndpointRejection) -> None:
        """Another endpoint accepted the request that this endpoint rejected."""
        self.routing.blame(rejection.endpoint, rejection.ticket, aio.now())
        self.mark_down(rejection.endpoint, rejection.error, do_others_accept=True)

    def on_success(self, ticket: Ticket, index: int, agent: str, started: float) -> None:
        now, member = aio.now(), self.members[index]
        self.routing.done(ticket, now)
        if now - started > self._slowest_seconds:
            self._slowest_seconds = now - started
        member.record.on_answer()
        if agent in self._failures:
            for rejection in self._failures.pop(agent).empty_answers:
                if rejection.endpoint != index:
                    self.blame(rejection)
        if member.is_down:
            self.mark_up(index)

    def on_empty(self, ticket: Ticket, index: int, agent: str, started: float) -> None:
        """The answer has neither text nor calls. If another endpoint answers the agent with more, this one is at
        fault."""
        if self.routing.is_up(index):
            self.routing.abandoned(ticket, aio.now())
        else:
            self.routing.failed(ticket, aio.now(), is_endpoint_fault=True)
        if agent:
            failures = self._failures_of(agent)
            failures.avoided.add(index)
            failures.empty_answers.append(EndpointRejection(index, ticket, EMPTY_ANSWER))

    def on_failure(self, ticket: Ticket, index: int, agent: str, error: BackendError) -> None:
        """A failure does not count against the endpoint if the agent's last request failed in the same way
        elsewhere."""
        record, failures = self.members[index].record, self._failures.get(agent)
        may_be_agent_fault = bool(agent) and request_may_cause(error, record)
        is_suspect = failures is not None and failures.is_suspect
        if may_be_agent_fault and is_suspect and self.routing.is_up(index):
            self.routing.abandoned(ticket, aio.now())
        else:
            self.record_failure(ticket, index, error)
            self.mark_down(index, error)
        if may_be_agent_fault:
            failures = self._failures_of(agent)
            failures.is_suspect = True
            if record.is_proven:
                failures.broken.add(index)
        record.on_miss()
        self.avoid(index, agent)

    def avoid(self, index: int, agent: str) -> None:
        """The agent's next request goes to another endpoint."""
        if agent:
            self._failures_of(agent).avoided.add(index)

    def is_contained(self, agent: str) -> bool:
        """Whether the agent's requests broke so many endpoints that they go to no other one."""
        return agent in self._failures and self._failures[agent].is_contained

    def _failures_of(self, agent: str) -> AgentFailures:
        return self._failures.setdefault(agent, AgentFailures())

    def is_hang(self, seconds: float) -> bool:
        """Whether an endpoint that did not respond for so long is considered to hang."""
        relative_limit = max(_MIN_HANG_SECONDS, _HANG_FACTOR * self._slowest_seconds)
        return seconds >= (min(_HANG_SECONDS, relative_limit) if self._slowest_seconds else _HANG_SECONDS)

    def mark_down(self, index: int, error: BackendError, *, do_others_accept: bool = False) -> None:
        """Notifies the user, once, that an endpoint is down. `do_others_accept`: another endpoint accepted what this
        one rejected."""
        member = self.members[index]
        member.last_error = str(error)
        if not member.is_down and not self.routing.is_up(index):
            member.is_down = True
            problem = "is down"
            if error.kind in REJECTIONS:
                problem = "rejects requests that other endpoints accept" if do_others_accept else "rejects requests"
            elif error is EMPTY_ANSWER:
                problem = "answers with nothing where other endpoints do not"
            then = "; its requests go to the other endpoints" if self.routing.is_any_up else ""
            self._notify(f"{member.url} {problem}{then}: {error}")

    def mark_up(self, index: int) -> None:
        member = self.members[index]
        if member.is_down and self.routing.is_up(index):  # not for an answer to a request from before it was ejected
            member.is_down = False
            self._notify(f"{member.url} is back up.")

    def unavailable(self) -> tuple[str, ...]:
        return tuple(f"{each.url}: {each.last_error}" for each in self.members if each.is_down)

    def no_endpoint_error(
        self, failed: Mapping[int, BackendError], indices: Sequence[int] | None = None
    ) -> BackendError:
        """The error when no endpoint accepts a request. `failed`: its errors, by endpoint; `indices`: the endpoints
        that were eligible."""
        errors = list(failed.values())
        for error in errors:
            if error.kind not in ENDPOINT_FAULTS:  # the request was rejected: the server's own message
                return self._rejection_error(failed, error)
        kind = errors[-1].kind if errors else ErrorKind.UNAVAILABLE
        if indices is None and not self.names:
            text = "No endpoint takes requests: all of them have left, and no other one has joined yet."
            return BackendError(ErrorKind.UNAVAILABLE, text)
        candidates = [at for at, each in enumerate(self.members) if not each.has_left] if indices is None else indices
        problems = " ".join(f"{self.members[at].url}: {failed.get(at) or self._problem(at)}" for at in candidates)
        subject = (
            "The endpoint did not answer" if len(candidates) == 1 else f"None of {len(candidates)} endpoints answered"
        )
        message = f"{subject} the request. {problems}"
        if errors and all(is_overload_refusal(error) for error in errors):
            pauses = [error.retry_after for error in errors if error.retry_after is not None]
            return BackendError(kind, message, retry_after=min(pauses, default=None), status=errors[-1].status)
        error_class = WebPage if errors and all(isinstance(error, WebPage) for error in errors) else BackendError
        return error_class(kind, message)

    def _rejection_error(self, failed: Mapping[int, BackendError], error: BackendError) -> BackendError:
        members = [self.members[index] for index in failed]
        if error.kind is not ErrorKind.BAD_REQUEST or any(each.record.has_answered for each in members):
            return error
        return rejected_by_all(error, [each.url for each in members])

    def breaking_error(self, failed: Mapping[int, BackendError]) -> BackendError:
        """The error of a request that proven endpoints did not survive."""
        problems = " ".join(f"{self.members[index].url}: {error}" for index, error in failed.items())
        last = list(failed.values())[-1]
        message = f"{len(failed)} endpoints that answer others failed with this request. {problems}"
        return BackendError(last.kind, message, status=last.status)

    def _problem(self, index: int) -> str:
        if self.routing.is_draining(index):
            return "It is draining."
        return self.members[index].last_error or "It is at its limit."


class PooledRequest(AsyncIterator[Delta]):
    """One request and its deltas. It goes to one endpoint after the other until one accepts it, or two have rejected
    it."""

    __slots__ = ("_deltas", "_has_begun", "_index", "_is_empty", "_pool", "_request", "_started", "_stream", "_ticket")

    _deltas: AsyncIterator[Delta]
    _stream: AbstractAsyncContextManager[AsyncIterator[Delta]]

    def __init__(self, pool: EndpointPool, request: Request) -> None:
        self._pool = pool
        self._request = request
        self._index = -1
        self._ticket: Ticket | None = None
        self._started = 0.0
        self._has_begun = self._is_empty = False

    async def __aenter__(self) -> Self:
        pool, request = self._pool, self._request
        failed: FailedAttempts | None = None
        excluded = set[int]()
        grant = None if pool.paces is None else pool.paces.take()
        while (index := pool.choose(request, now := aio.now(), excluded, grant)) is not None:
            if failed is not None:
                self._check_budget(failed)
            self._index, self._ticket, self._started = index, pool.routing.sent(index, 1.0, now), now
            excluded.add(index)
            try:
                backend = pool.members[index].backend
                if backend is None:
                    backend = await pool.members[index].get_backend(pool.traits)
                    if pool.routing.is_draining(index):  # meanwhile
                        self._release()
                        continue
                if backend.traits.has_agent_sessions:
                    pool.add_session(request.agent, index)
                self._stream = backend.stream(request)
                self._deltas = await self._stream.__aenter__()
            except BackendError as error:
                failed = failed or FailedAttempts()
                self._on_failed_attempt(failed, error)
            except BaseException:
                self._abandon()
                raise
            else:
                for rejection in () if failed is None else failed.rejections:
                    pool.blame(rejection)
                return self
        raise pool.no_endpoint_error({} if failed is None else failed.errors)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._stream.__aexit__(kind, error, trace)
        finally:
            if error is None and self._ticket is not None:
                end = self._pool.on_empty if self._is_empty else self._pool.on_success
                end(self._ticket, self._index, self._request.agent, self._started)
            elif isinstance(error, BackendError):
                self._fail(error)
            else:
                self._abandon()

    def __anext__(self) -> Awaitable[Delta]:
        return self._deltas.__anext__() if self._has_begun else self._read_first()

    async def _read_first(self) -> Delta:
        """The first delta shows whether there is anything before the end."""
        delta = await self._deltas.__anext__()
        self._has_begun, self._is_empty = True, type(delta) is Finished
        return delta

    def _on_failed_attempt(self, failed: FailedAttempts, error: BackendError) -> None:
        """Raises the error if the request is at fault, not the endpoint."""
        pool, index, ticket = self._pool, self._index, self._ticket
        failed.add(index, error, pool.members[index].record)
        if error.kind in REJECTIONS and ticket is not None and pool.routing.is_up(index):
            failed.rejections.append(EndpointRejection(index, ticket, error))
            self._release()
            if failed.is_rejected:
                raise pool.no_endpoint_error(failed.errors) from None
            return
        self._fail(error)
        if error.kind is ErrorKind.CONTEXT_OVERFLOW:
            raise error
        if pool.is_contained(self._request.agent) and len(failed.errors) >= MAX_BROKEN:
            raise pool.breaking_error(failed.errors) from None

    def _check_budget(self, failed: FailedAttempts) -> None:
        """Raises the last error if an endpoint may have worked on the request, and the budget does not allow it once
        more."""
        error, charge = list(failed.errors.values())[-1], self._request.charge
        if charge is not None and error.may_be_billed and not charge.again():
            raise error

    def _fail(self, error: BackendError) -> None:
        if self._ticket is not None:
            ticket, self._ticket = self._ticket, None
            self._pool.on_failure(ticket, self._index, self._request.agent, error)

    def _abandon(self) -> None:
        """The caller cancelled the request, which is also how a turn timeout ends."""
        seconds = aio.now() - self._started
        if self._pool.is_hang(seconds):
            self._fail(BackendError(ErrorKind.CONNECTION, f"No response within {seconds:.0f} s."))
        self._pool.avoid(self._index, self._request.agent)
        self._release()

    def _release(self) -> None:
        """Ends the request without counting it for or against the endpoint."""
        if self._ticket is not None:
            ticket, self._ticket = self._ticket, None
            self._pool.routing.abandoned(ticket, aio.now())


def _prefixes(request: Request) -> tuple[int, ...]:
    """Beginnings of the prompt that other agents may share, as hashes, the longest first: up to each reference, and the
    text before them."""
    first = request.messages[0] if request.messages else None
    if not isinstance(first, User) or not first.shared:
        return ()
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
        for task in (await asyncio.wait(pending, timeout=pool_member.OPEN_TIMEOUT))[1] if pending else ():
            task.cancel()
    return [pool_member.timeout_error() if task.cancelled() else task.result() for task in tasks]


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
