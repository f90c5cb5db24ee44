"""Transport interface: how requests reach a server, and the errors that every implementation raises."""

from collections.abc import Mapping
from typing import Protocol

from yarl import URL

Headers = Mapping[str, str]

MAX_BODY_BYTES = 64 * 2**20
"""Limit of a response that is read in one piece. The longest replies of models have a few megabytes, with details."""
MAX_STREAM_BYTES = 256 * 2**20
"""Limit of a streamed response, in which each token comes with some hundred bytes of JSON."""
MAX_PAGE_BYTES = 16 * 2**20
"""Limit of a page outside of the inference API, such as the metrics or the list of models."""


class TransportError(OSError):
    """The connection failed; the message says how."""


class ConnectionDropped(TransportError):
    """The server closed the connection before it responded. The request may have reached it."""


class StaleConnection(ConnectionDropped):
    """The server closed a reused connection without sending a byte of the response. Servers close idle connections,
    and may do so just as a request is sent."""


class ConnectError(TransportError):
    """The server refused the connection, or its name was not resolved."""


class ConnectTimeout(TransportError):
    """No connection was established in time."""


class TlsError(TransportError):
    """The TLS handshake failed."""


class InvalidUrl(TransportError):
    """The URL cannot be connected to."""


class BodyTooLarge(TransportError):
    """The response body exceeds its limit. The rest was not read, and the connection was closed."""


class TransportResponse(Protocol):
    """HTTP response whose head has been received. Reading raises OSError."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Headers: ...

    @property
    def sent_headers(self) -> Headers:
        """Headers of the request."""
        ...

    @property
    def content_type(self) -> str: ...

    @property
    def is_complete(self) -> bool:
        """Whether the body has been read to its end."""
        ...

    async def read(self, limit: int = MAX_BODY_BYTES) -> bytes:
        """Reads the whole body. Raises BodyTooLarge for a body of more than `limit` bytes."""
        ...

    async def chunk(self, limit: int = MAX_STREAM_BYTES) -> bytes:
        """Reads the next part of the body; empty at its end. Raises BodyTooLarge for a body of more than `limit`
        bytes."""
        ...

    def close(self) -> None:
        """Releases the connection for reuse if the body has been read to its end; otherwise aborts the request."""
        ...


class Transport(Protocol):
    """Connections to one server."""

    @property
    def headers(self) -> Headers:
        """Headers that every request carries."""
        ...

    @property
    def is_closed(self) -> bool: ...

    async def send(self, method: str, url: URL, body: bytes, headers: Headers | None) -> TransportResponse:
        """Sends a request. Redirects are not followed: the API key is meant for this server only. Raises OSError."""
        ...

    async def aclose(self) -> None: ...


def format_size(count: int) -> str:
    """A number of bytes for messages, as in "64 KiB"."""
    for unit, size in (("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} bytes"
