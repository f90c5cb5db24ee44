"""Pool of plain HTTP connections to one server.

A general HTTP client costs more per request than all the rest of a turn. An inference server on the same machine or
in the same rack answers thousands of small requests a second, so this pool resolves the host once for all callers
that connect at the same time, and encodes the headers that all requests share once.
"""

import asyncio
import socket
from base64 import b64encode
from typing import Any

from yarl import URL

from .connection import PlainConnection
from .transport import ConnectError, ConnectTimeout, Headers

_DNS_TTL = 10.0

Addresses = list[tuple[Any, ...]]


class Resolver:
    """Addresses of one host, cached for a few seconds."""

    def __init__(self, root: URL) -> None:
        self._root = root
        self._addresses: Addresses = []
        self._expires_at = 0.0
        self._dns_lock = asyncio.Lock()

    async def addresses(self) -> Addresses:
        """The result of getaddrinfo. Raises ConnectError."""
        loop = asyncio.get_running_loop()
        async with self._dns_lock:
            if loop.time() >= self._expires_at:
                try:
                    self._addresses = await loop.getaddrinfo(self._root.host, self._root.port, type=socket.SOCK_STREAM)
                except OSError as error:
                    raise ConnectError(str(error)) from error
                self._expires_at = loop.time() + _DNS_TTL
        return self._addresses


class RequestHeads:
    """Encoder of HTTP/1.1 request heads. Raises ValueError for a header that contains a line break."""

    def __init__(self, headers: Headers) -> None:
        self._shared = headers
        self._shared_lines = _encode_headers(headers)
        self._request_lines: dict[tuple[str, URL], bytes] = {}

    def encode(self, method: str, url: URL, headers: Headers | None) -> bytes:
        """The head of a request, without the empty line at its end."""
        first = self._request_lines.get((method, url))
        if first is None:
            line = f"{method} {url.raw_path_qs} HTTP/1.1\r\nHost: {url.host_port_subcomponent}\r\n"
            first = self._request_lines[method, url] = line.encode("ascii")
        return first + (_encode_headers(self.merge(headers)) if headers else self._shared_lines)

    def merge(self, headers: Headers) -> Headers:
        """All headers of one request; its own override the shared ones."""
        own = {name.lower() for name in headers}
        return {**{name: value for name, value in self._shared.items() if name.lower() not in own}, **headers}


def _encode_headers(headers: Headers) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
        raise ValueError("a header contains a line break")
    return lines.encode("latin-1", errors="replace")


_CONNECT_TIMEOUT = 10.0
_MAX_IDLE = 15.0
"""Seconds after which an idle connection is not reused: servers close idle connections."""


class ConnectionPool:
    """Transport with one connection per concurrent request. The most recently used connection is reused first."""

    def __init__(self, root: URL, headers: Headers, *, keep_alive: bool = True) -> None:
        """`headers`: of every request. `keep_alive`: whether a connection is reused for another request."""
        self._root = root
        self.headers = {"User-Agent": "batch-agent", **headers}
        if not keep_alive:
            self.headers["Connection"] = "close"
        if root.user is not None:
            credentials = f"{root.user}:{root.password or ''}".encode()
            self.headers["Authorization"] = f"Basic {b64encode(credentials).decode()}"
        self._heads = RequestHeads(self.headers)
        self._idle: list[PlainConnection] = []
        self._resolver = Resolver(root)
        self._keep_alive = keep_alive
        self.is_closed = False

    async def send(self, method: str, url: URL, body: bytes, headers: Headers | None) -> PlainConnection:
        """The connection, once it has received the head of the response. Raises TransportError."""
        connection = self._take_idle() or await self._connect()
        connection.sent_headers = self._heads.merge(headers) if headers else self.headers
        try:
            length = b"" if method == "GET" else b"Content-Length: %d\r\n" % len(body)
            connection.send(b"%b%b\r\n%b" % (self._heads.encode(method, url, headers), length, body))
            await connection.head()
            connection.has_answered = connection.has_answered or method != "GET"
        except BaseException:
            connection.close()
            raise
        return connection

    def release(self, connection: PlainConnection) -> None:
        if self.is_closed or not self._keep_alive:
            connection.close()
            return
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)

    def discard(self, connection: PlainConnection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    async def aclose(self) -> None:
        """Closes idle connections. Connections in use are closed when their responses are."""
        self.is_closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take_idle(self) -> PlainConnection | None:
        if not self._idle:
            return None
        fresh_since = asyncio.get_running_loop().time() - _MAX_IDLE
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable and connection.idle_since >= fresh_since and connection.has_no_input:
                return connection
            connection.close()
        return None

    async def _connect(self) -> PlainConnection:
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                return await self._try_addresses(await self._resolver.addresses())
        except TimeoutError as error:
            raise ConnectTimeout from error

    async def _try_addresses(self, addresses: Addresses) -> PlainConnection:
        loop, last_error = asyncio.get_running_loop(), OSError("the host has no address")
        for family, _, _, _, sockaddr in addresses:
            try:
                _, connection = await loop.create_connection(
                    lambda: PlainConnection(self), sockaddr[0], sockaddr[1], family=family
                )
            except OSError as error:
                last_error = error
            else:
                return connection
        raise ConnectError(str(last_error)) from last_error
