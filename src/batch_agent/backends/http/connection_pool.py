"""Connections to one server that speaks plain HTTP, each used for one request after the other.

An inference server on the same machine or in the same rack answers thousands of small requests a second; what a general
HTTP client does for each of them costs more than all the rest of a turn.

The addresses of one host, looked up once for all who connect at the same time.

The head of an HTTP/1.1 request, with the headers that all requests to a server share made into bytes once.
"""

import asyncio
import socket
from base64 import b64encode
from typing import Any

from yarl import URL

from .connection import PlainConnection
from .transport import ConnectError, ConnectTimeout, Headers

_GOOD_FOR = 10.0

Addresses = list[tuple[Any, ...]]


class Resolver:
    """Keeps what a look-up found for some seconds."""

    def __init__(self, root: URL) -> None:
        self._root = root
        self._addresses: Addresses = []
        self._good_until = 0.0
        self._looking_up = asyncio.Lock()

    async def addresses(self) -> Addresses:
        """As getaddrinfo gives them. Raises NoConnection."""
        loop = asyncio.get_running_loop()
        async with self._looking_up:
            if loop.time() >= self._good_until:
                try:
                    self._addresses = await loop.getaddrinfo(self._root.host, self._root.port, type=socket.SOCK_STREAM)
                except OSError as error:
                    raise ConnectError(str(error)) from error
                self._good_until = loop.time() + _GOOD_FOR
        return self._addresses


class RequestHeads:
    """Raises ValueError for a header that would end a line early."""

    def __init__(self, headers: Headers) -> None:
        self._shared = headers
        self._standing = _lines(headers)
        self._firsts: dict[tuple[str, URL], bytes] = {}

    def bytes_of(self, method: str, url: URL, headers: Headers | None) -> bytes:
        """Without the empty line at its end."""
        first = self._firsts.get((method, url))
        if first is None:
            line = f"{method} {url.raw_path_qs} HTTP/1.1\r\nHost: {url.host_port_subcomponent}\r\n"
            first = self._firsts[method, url] = line.encode("ascii")
        return first + (_lines(self.with_own(headers)) if headers else self._standing)

    def with_own(self, headers: Headers) -> Headers:
        """All headers of one request, its own before the shared ones."""
        own = {name.lower() for name in headers}
        return {**{name: value for name, value in self._shared.items() if name.lower() not in own}, **headers}


def _lines(headers: Headers) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
        raise ValueError("a header has a line end in it")
    return lines.encode("latin-1", errors="replace")


_CONNECT_WITHIN = 10.0
_IDLE = 15.0
"""Seconds after which a connection is not used again: servers close those that are idle."""


class ConnectionPool:
    """As many connections as there are requests at once; the one that was used last is used first."""

    def __init__(self, root: URL, headers: Headers, *, keeps_alive: bool = True) -> None:
        """`headers`: of every request. `keeps_alive`: whether a connection is used for another one."""
        self._root = root
        self.headers = {"User-Agent": "batch-agent", **headers}
        if not keeps_alive:
            self.headers["Connection"] = "close"
        if root.user is not None:
            credentials = f"{root.user}:{root.password or ''}".encode()
            self.headers["Authorization"] = f"Basic {b64encode(credentials).decode()}"
        self._heads = RequestHeads(self.headers)
        self._idle: list[PlainConnection] = []
        self._resolver = Resolver(root)
        self._keeps_alive = keeps_alive
        self.is_closed = False

    async def send(self, method: str, url: URL, body: bytes, headers: Headers | None) -> PlainConnection:
        """The connection with the head of the answer. Raises WireError."""
        line = self._take() or await self._connect()
        line.sent_headers = self._heads.with_own(headers) if headers else self.headers
        try:
            length = b"" if method == "GET" else b"Content-Length: %d\r\n" % len(body)
            line.send(b"%b%b\r\n%b" % (self._heads.bytes_of(method, url, headers), length, body))
            await line.head()
            line.has_answered = line.has_answered or method != "GET"
        except BaseException:
            line.close()
            raise
        return line

    def give_back(self, line: PlainConnection) -> None:
        if self.is_closed or not self._keeps_alive:
            line.close()
            return
        line.idle_since = asyncio.get_running_loop().time()
        self._idle.append(line)

    def forget(self, line: PlainConnection) -> None:
        if line in self._idle:
            self._idle.remove(line)

    async def aclose(self) -> None:
        """Those under way are closed with their answers."""
        self.is_closed = True
        idle, self._idle = self._idle, []
        for line in idle:
            line.close()

    def _take(self) -> PlainConnection | None:
        if not self._idle:
            return None
        fresh_since = asyncio.get_running_loop().time() - _IDLE
        while self._idle:
            line = self._idle.pop()
            if line.is_usable and line.idle_since >= fresh_since and line.is_quiet:
                return line
            line.close()
        return None

    async def _connect(self) -> PlainConnection:
        try:
            async with asyncio.timeout(_CONNECT_WITHIN):
                return await self._try_addresses(await self._resolver.addresses())
        except TimeoutError as error:
            raise ConnectTimeout from error

    async def _try_addresses(self, addresses: Addresses) -> PlainConnection:
        loop, failed = asyncio.get_running_loop(), OSError("it has no address")
        for family, _, _, _, place in addresses:
            try:
                _, line = await loop.create_connection(lambda: PlainConnection(self), place[0], place[1], family=family)
            except OSError as error:
                failed = error
            else:
                return line
        raise ConnectError(str(failed)) from failed
