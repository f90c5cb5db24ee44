"""Failover policy: which errors send a request to another endpoint, and which count against the endpoint."""

from typing import NamedTuple

from ..core.errors import BackendError, ErrorKind
from ..schedule.routing import Ticket

ENDPOINT_FAULTS = frozenset(
    {
        ErrorKind.UNAVAILABLE,
        ErrorKind.CONNECTION,
        ErrorKind.SERVER,
        ErrorKind.TLS,
        ErrorKind.TURN_TIMEOUT,
    }
)
"""Errors of an endpoint. Another endpoint may succeed."""
REJECTIONS = frozenset({ErrorKind.BAD_REQUEST, ErrorKind.AUTH, ErrorKind.NOT_FOUND})
"""Rejections of a request. The request is tried on another endpoint: if that one accepts it, the first endpoint is at
fault; if not, the request is."""
MAX_REJECTIONS = 2
"""Endpoints that reject a request before it fails."""


class EndpointRejection(NamedTuple):
    """One endpoint's rejection of a request that another endpoint may accept."""

    endpoint: int
    ticket: Ticket
    error: BackendError


class PooledRequest:
    """One request, sent to one endpoint after the other until one takes it, or two have refused it."""

    def __init__(self, fleet: "EndpointPool", request: Request) -> None:
        self._fleet = fleet
        self._request = request
        self._place = -1
        self._ticket: Ticket | None = None
        self._began = 0.0
        self._exchange: AbstractAsyncContextManager[AsyncIterator[Delta]] | None = None

    async def __aenter__(self) -> AsyncIterator[Delta]:
        fleet, tried, errors, refusals = self._fleet, set[int](), list[BackendError](), list[EndpointRejection]()
        while (place := fleet.choose(self._request, tried)) is not None:
            if errors and not self._is_paid_again(errors[-1]):
                raise errors[-1]
            self._place, self._ticket, self._began = place, fleet.take(place), aio.now()
            try:
                backend = await fleet.members[place].opened(fleet.traits.model)
                self._exchange = backend.stream(self._request)
                deltas = await self._exchange.__aenter__()
            except BackendError as error:
                tried.add(place)
                errors.append(error)
                if error.kind in MAYBE_ITS_FAULT and fleet.routing.is_up(place):
                    refusals.append(EndpointRejection(place, self._ticket, error))
                    self._let_go()
                    if len(refusals) == _SECOND_OPINION:
                        raise refusals[0].error from None
                    continue
                self._fail(error)
                if error.kind is ErrorKind.CONTEXT_OVERFLOW:
                    raise
            except BaseException:
                self._give_up()
                raise
            else:
                for refusal in refusals:
                    fleet.blame(refusal)
                return deltas
        raise fleet.nobody(errors)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            assert self._exchange is not None
            await self._exchange.__aexit__(kind, error, trace)
        finally:
            if error is None and self._ticket is not None:
                self._fleet.answered(self._ticket, self._place, self._request.agent, aio.now() - self._began)
            elif isinstance(error, BackendError):
                self._fail(error)
            else:
                self._give_up()

    def _is_paid_again(self, error: BackendError) -> bool:
        """Whether the run can pay for the request once more, after an endpoint that may have worked on it."""
        charge = self._request.charge
        return charge is None or not error.may_be_billed or charge.again()

    def _fail(self, error: BackendError) -> None:
        if self._ticket is not None:
            ticket, self._ticket = self._ticket, None
            self._fleet.failed(ticket, self._place, self._request.agent, error)

    def _give_up(self) -> None:
        """Nobody waits any longer, which is also how a turn ends that took too long."""
        seconds = aio.now() - self._began
        if self._fleet.hangs(seconds):
            self._fail(BackendError(ErrorKind.CONNECTION, f"It did not answer within {seconds:.0f} s."))
        self._fleet.avoid(self._place, self._request.agent)
        self._let_go()

    def _let_go(self) -> None:
        """Nothing is learned of the endpoint from it."""
        if self._ticket is not None:
            ticket, self._ticket = self._ticket, None
            self._fleet.routing.abandoned(ticket, aio.now())
