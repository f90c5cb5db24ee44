"""Failover policy: which errors send a request to another endpoint, and which count against the endpoint."""

from typing import NamedTuple

from ...core.errors import BackendError, ErrorKind
from ...schedule.routing import Ticket

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
