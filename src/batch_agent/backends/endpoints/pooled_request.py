"""Request to an endpoint pool, which goes to one endpoint after the other until one accepts it."""

from collections.abc import AsyncIterator, Awaitable, Sequence, Set
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Protocol, Self

from ... import aio
from ...core.errors import BackendError, ErrorKind
from ...core.protocols.backend import Traits
from ...core.requests import Delta, Finished, Request
from ...schedule.endpoints.routing import Routing, Ticket
from ...schedule.pace import EndpointPaces, Grant
from .endpoint_health import EndpointHealth
from .failover import MAX_BROKEN, REJECTIONS, EndpointRejection, FailedAttempts
from .pool_member import PoolEndpoint

_NONE: Set[int] = frozenset()


class RequestPool(Protocol):
    """What a request needs of its pool."""

    traits: Traits

    @property
    def members(self) -> Sequence[PoolEndpoint]: ...

    @property
    def routing(self) -> Routing: ...

    @property
    def health(self) -> EndpointHealth: ...

    @property
    def paces(self) -> EndpointPaces | None: ...

    def choose(self, request: Request, now: float, exclude: Set[int], grant: Grant | None = None) -> int | None:
        """The endpoint for a request. `grant`: of the pace."""
        ...

    def has_other(self, exclude: Set[int]) -> bool:
        """Whether a further endpoint is connected and takes requests."""
        ...

    def connect(self, index: int, ticket: Ticket) -> None:
        """Connects to an endpoint in the background. `ticket`: of the request that was to go there."""
        ...

    def add_session(self, agent: str, index: int) -> None:
        """The endpoint keeps a session for the agent, which ends when the agent does."""
        ...


class PooledRequest(AsyncIterator[Delta]):
    """One request and its deltas. It goes to one endpoint after the other until one accepts it, or two have rejected
    it."""

    __slots__ = ("_deltas", "_has_begun", "_index", "_is_empty", "_pool", "_request", "_started", "_stream", "_ticket")

    _deltas: AsyncIterator[Delta]
    _stream: AbstractAsyncContextManager[AsyncIterator[Delta]]

    def __init__(self, pool: RequestPool, request: Request) -> None:
        self._pool = pool
        self._request = request
        self._index = -1
        self._ticket: Ticket | None = None
        self._started = 0.0
        self._has_begun = self._is_empty = False

    async def __aenter__(self) -> Self:
        pool, request = self._pool, self._request
        failed: FailedAttempts | None = None
        excluded: Set[int] = _NONE
        grant = None if pool.paces is None else pool.paces.take()
        while (index := pool.choose(request, now := aio.now(), excluded, grant)) is not None:
            if failed is not None:
                self._check_budget(failed)
            self._index, self._ticket, self._started = index, pool.routing.sent(index, 1.0, now), now
            try:
                backend = pool.members[index].backend
                if backend is None:
                    if pool.has_other(excluded | {index}):
                        pool.connect(index, self._ticket)
                        self._ticket, excluded = None, excluded | {index}
                        continue
                    backend = await pool.members[index].get_backend(pool.traits)
                    if pool.routing.is_draining(index):  # meanwhile
                        self._release()
                        excluded = excluded | {index}
                        continue
                if backend.traits.has_agent_sessions:
                    pool.add_session(request.agent, index)
                self._stream = backend.stream(request)
                self._deltas = await self._stream.__aenter__()
            except BackendError as error:
                failed, excluded = failed or FailedAttempts(), excluded | {index}
                self._on_failed_attempt(failed, error)
            except BaseException:
                self._abandon()
                raise
            else:
                if failed is not None:
                    for rejection in failed.rejections:
                        pool.health.blame(rejection)
                return self
        raise pool.health.no_endpoint_error({} if failed is None else failed.errors)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._stream.__aexit__(kind, error, trace)
        finally:
            if error is None and self._ticket is not None:
                end = self._pool.health.on_empty if self._is_empty else self._pool.health.on_success
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
                raise pool.health.no_endpoint_error(failed.errors) from None
            return
        self._fail(error)
        if error.kind is ErrorKind.CONTEXT_OVERFLOW:
            raise error
        if pool.health.is_contained(self._request.agent) and len(failed.errors) >= MAX_BROKEN:
            raise pool.health.breaking_error(failed.errors) from None

    def _check_budget(self, failed: FailedAttempts) -> None:
        """Raises the last error if an endpoint may have worked on the request, and the budget does not allow it once
        more."""
        error, charge = list(failed.errors.values())[-1], self._request.charge
        if charge is not None and error.may_be_billed and not charge.again():
            raise error

    def _fail(self, error: BackendError) -> None:
        if self._ticket is not None:
            ticket, self._ticket = self._ticket, None
            self._pool.health.on_failure(ticket, self._index, self._request.agent, error)

    def _abandon(self) -> None:
        """The caller cancelled the request, which is also how a turn timeout ends."""
        seconds = aio.now() - self._started
        if self._pool.health.is_hang(seconds):
            self._fail(BackendError(ErrorKind.CONNECTION, f"No response within {seconds:.0f} s."))
        self._pool.health.avoid(self._index, self._request.agent)
        self._release()

    def _release(self) -> None:
        """Ends the request without counting it for or against the endpoint."""
        if self._ticket is not None:
            ticket, self._ticket = self._ticket, None
            self._pool.routing.abandoned(ticket, aio.now())
