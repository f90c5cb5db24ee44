"""How requests get to a server, and what can go wrong on the way, whoever carries them."""

from collections.abc import Mapping
from typing import Protocol

from yarl import URL

from .proxy import proxy_of

Headers = Mapping[str, str]

LARGEST_BODY = 64 * 2**20
"""Bytes of an answer that is read as one. The longest answer of a model has a few megabytes, details included."""
LARGEST_STREAM = 256 * 2**20
"""Bytes of a streamed answer, each token of which comes with some hundred bytes around it."""
LARGEST_PAGE = 16 * 2**20
"""Bytes of a page that a server has beside its API, such as its metrics or its models."""


class TransportError(OSError):
    """A connection that broke; the message says how."""


class ConnectionDropped(TransportError):
    """The server ended the connection before it answered. The request may have reached it."""


class StaleConnection(ConnectionDropped):
    """The same on a connection that had carried an answer before, without a single byte of the next one: servers close
    idle connections, and may do so just as a request goes out."""


class ConnectError(TransportError):
    """Nobody takes connections there."""


class ConnectTimeout(TransportError):
    """Nobody answers there."""


class TlsError(TransportError):
    """No connection that both sides trust."""


class InvalidUrl(TransportError):
    """There can be nobody there."""


class BodyTooLarge(TransportError):
    """The answer has more bytes than are read of one. The rest was not read, and the connection was closed."""


class TransportResponse(Protocol):
    """An HTTP answer whose head is there. Reading raises OSError."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Headers: ...

    @property
    def sent_headers(self) -> Headers:
        """Of the request."""
        ...

    @property
    def content_type(self) -> str: ...

    @property
    def is_whole(self) -> bool:
        """It was read to its end."""
        ...

    async def read(self, most: int = LARGEST_BODY) -> bytes:
        """The whole body. Raises BodyTooLarge for one of more than `most` bytes."""
        ...

    async def chunk(self, most: int = LARGEST_STREAM) -> bytes:
        """The next part of the body; empty at its end. Raises BodyTooLarge for a body of more than `most` bytes."""
        ...

    def close(self) -> None:
        """Keeps the connection for another request if the answer is whole. If not, this aborts the request."""
        ...


class Transport(Protocol):
    """Connections to one server, with what is sent on each of them."""

    @property
    def headers(self) -> Headers:
        """Of every request."""
        ...

    @property
    def is_closed(self) -> bool: ...

    async def send(self, method: str, url: URL, body: bytes, headers: Headers | None) -> TransportResponse:
        """Never follows a redirect: the key is for this server. Raises OSError."""
        ...

    async def aclose(self) -> None: ...


def open_transport(root: URL, headers: Headers, *, keeps_alive: bool = True) -> Transport:
    """Slots bound the connections, the turn timeout bounds the waiting. Raises BackendError for a proxy that the
    environment names and that cannot be used."""
    every = {"Content-Type": "application/json", "Accept-Encoding": "identity", **headers}
    proxy = proxy_of(root)
    if root.scheme == "http" and proxy is None:
        from .connection_pool import ConnectionPool

        return ConnectionPool(root, every, keeps_alive=keeps_alive)
    from .aiohttp_transport import (
        AiohttpTransport,  # for TLS and proxies; importing aiohttp takes longer than all the rest
    )

    return AiohttpTransport(every, keeps_alive=keeps_alive, proxy=proxy)


def declared_size(count: int) -> str:
    """A number of bytes, in words."""
    for unit, size in (("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} bytes"
