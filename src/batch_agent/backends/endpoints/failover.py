"""Failover policy: which errors send a request to another endpoint, and which count against the endpoint."""

from collections.abc import Collection
from typing import NamedTuple

from ...core.errors import BackendError, ErrorKind
from ...schedule.endpoints.routing import Ticket
from ...schedule.retry import is_overload_refusal

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
_REQUEST_MAY_CAUSE = frozenset({ErrorKind.CONNECTION, ErrorKind.SERVER})
"""Errors that a prompt may cause on any endpoint."""
EMPTY_ANSWER = BackendError(ErrorKind.INVALID_OUTPUT, "Its answers are empty.")
_MAX_REJECTIONS = 2
"""Proven endpoints that reject a request before it fails."""
MAX_BROKEN = 3
"""Proven endpoints that an agent's request may break, in all its attempts. A prompt that crashes engines must not reach
them all."""
_MAX_UNPROVEN_REJECTIONS = 8
"""Endpoints of any kind that reject a request before it fails, so that it does not visit a thousand of them."""
_MAX_MISSES = 3
"""Requests in a row that a proven endpoint may reject or break off. Then its word no longer counts: it may have been
restarted with other options."""


class EndpointRejection(NamedTuple):
    """One endpoint's rejection of a request that another endpoint may accept."""

    endpoint: int
    ticket: Ticket
    error: BackendError


class AnswerRecord:
    """Whether an endpoint answers requests at all, so that its failures are evidence against a request."""

    __slots__ = ("_misses",)

    def __init__(self) -> None:
        self._misses: int | None = None
        """Requests in a row without an answer; None before the first answer."""

    @property
    def is_proven(self) -> bool:
        return self._misses is not None and self._misses < _MAX_MISSES

    @property
    def has_answered(self) -> bool:
        return self._misses is not None

    def on_answer(self) -> None:
        self._misses = 0

    def on_miss(self) -> None:
        if self._misses is not None:
            self._misses += 1


def request_may_cause(error: BackendError, record: AnswerRecord) -> bool:
    """Whether a prompt may have caused the error of an endpoint. A gateway that finds no server (502, 503) may say so
    because the engine crashed on the prompt, if it answers others."""
    is_gateway = error.kind is ErrorKind.UNAVAILABLE and error.status is not None and not is_overload_refusal(error)
    return error.kind in _REQUEST_MAY_CAUSE or (is_gateway and record.is_proven)


def is_conclusive(proven: int, endpoints: int) -> bool:
    """Whether so many endpoints, of which so many are proven, have shown that a request is at fault. An endpoint that
    has answered nothing yet may reject everything."""
    return proven >= _MAX_REJECTIONS or endpoints >= _MAX_UNPROVEN_REJECTIONS


class FailedAttempts:
    """The failures of one request, by endpoint."""

    __slots__ = ("_proven_rejections", "errors", "rejections")

    def __init__(self) -> None:
        self.errors: dict[int, BackendError] = {}
        self.rejections: list[EndpointRejection] = []
        self._proven_rejections = 0

    def add(self, endpoint: int, error: BackendError, record: AnswerRecord) -> None:
        self.errors[endpoint] = error
        if error.kind in REJECTIONS:
            self._proven_rejections += record.is_proven
            record.on_miss()

    @property
    def is_rejected(self) -> bool:
        return is_conclusive(self._proven_rejections, len(self.rejections))


class AgentFailures:
    """What an agent's last requests left behind, until one of them is answered."""

    __slots__ = ("avoided", "broken", "empty_answers", "is_suspect")

    def __init__(self) -> None:
        self.is_suspect = False
        """Whether its last request may have caused the failure of an endpoint."""
        self.avoided: set[int] = set()
        """Endpoints on which requests failed or timed out. The next one goes to another endpoint."""
        self.broken: set[int] = set()
        """Proven endpoints that failed with its requests."""
        self.empty_answers: list[EndpointRejection] = []

    @property
    def is_contained(self) -> bool:
        """Whether its requests broke so many endpoints that they go to no other one."""
        return len(self.broken) >= MAX_BROKEN


def rejected_by_all(error: BackendError, endpoints: Collection[str]) -> BackendError:
    """The rejection of a request by endpoints none of which has answered any request."""
    which = "The endpoint rejects" if len(endpoints) == 1 else f"All {len(endpoints)} endpoints that were tried reject"
    message = (
        f"{error} {which} it, and none has answered another request. `batch-agent doctor {min(endpoints)}` shows what "
        "the server supports; if that finds nothing, leave out options that it may not know."
    )
    return BackendError(error.kind, message, retry_after=error.retry_after, status=error.status)
