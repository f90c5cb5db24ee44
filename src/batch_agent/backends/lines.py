"""Connections to one server that speaks plain HTTP, each used for one request after the other.

An inference server on the same machine or in the same rack answers thousands of small requests a second; what a general
HTTP client does for each of them costs more than all the rest of a turn."""

import asyncio
import socket
from base64 import b64encode
from typing import Any, cast

from multidict import CIMultiDict
from yarl import URL

from .http1 import AnswerReader, BadAnswer, Head
from .wire import Dropped, Headers, NoConnection, NoConnectionInTime, Stale, WireError

_CONNECT_WITHIN = 10.0
_IDLE = 15.0
"""Seconds after which a connection is not used again: servers close those that are idle."""
_ADDRESS_GOOD_FOR = 10.0
_MOST_UNREAD = 256 * 1024

Addresses = list[tuple[Any, ...]]


class Line(asyncio.Protocol):
    """One connection, and the answer to its last request. Raises WireError for one that breaks."""

    def __init__(self, lines: "Lines") -> None:
        self._lines = lines
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader: AnswerReader | None = None
        self._unread: list[bytes] = []
        self._waiting: asyncio.Future[None] | None = None
        self._wants_all = False
        self._is_paused = False
        self._broken: Exception | None = None
        self._is_silent = True
        self.has_answered = False  # to another request than for a page, as they are asked for at the start
        self.idle_since = 0.0
        self.sent_headers: Headers = lines.headers

    @property
    def is_usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes) -> None:
        assert self._transport is not None
        self._reader = AnswerReader()
        self._unread.clear()
        self._wants_all = False
        self._is_silent = True
        self._transport.write(request)

    async def head(self) -> Head:
        reader = self._under_way
        while reader.head is None:
            await self._news()
        return reader.head

    @property
    def status(self) -> int:
        return self._head.status

    @property
    def headers(self) -> Headers:
        return CIMultiDict(self._head.headers)

    @property
    def content_type(self) -> str:
        return self._head.content_type

    @property
    def is_whole(self) -> bool:
        """Nothing more of the answer comes, or is left to be read."""
        return self._under_way.is_whole and not self._unread

    async def read(self) -> bytes:
        """The whole body."""
        reader, self._wants_all = self._under_way, True
        while not reader.is_whole:
            await self._news()
        return self._take_unread()

    async def chunk(self) -> bytes:
        """What has come of the body; empty at its end."""
        while not (self._unread or self._under_way.is_whole):
            await self._news()
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return self._take_unread()

    def close(self) -> None:
        """The answer is not needed any more. A connection that it was read from to its end is used again."""
        reader, self._reader = self._reader, None
        if reader is not None and reader.is_whole and reader.keeps_open and self.is_usable:
            self._lines.give_back(self)
        elif self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        wire = transport.get_extra_info("socket")
        if wire is not None:  # an answer may take minutes: a server whose machine is gone shall be noticed
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        self._is_silent = False
        if reader is None or reader.is_whole:
            self._drop(reader)
            return
        try:
            body = reader.feed(data)
        except BadAnswer as error:
            self._break(WireError(f"This is no answer in HTTP: {error}"))
            return
        if body:
            self._unread.append(body)
        if self._waiting is not None and (reader.is_whole or not self._wants_all):
            self._wake()
        elif not self._wants_all and not self._is_paused and sum(map(len, self._unread)) > _MOST_UNREAD:
            self._is_paused = True
            cast(asyncio.Transport, self._transport).pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lines.forget(self)
        reader = self._reader
        if reader is None or reader.is_whole:
            return
        if reader.head is None:
            dropped = Stale if self.has_answered and self._is_silent else Dropped
            self._break(dropped("Server disconnected" if exc is None else str(exc)))
            return
        try:
            reader.end()
        except BadAnswer as error:
            self._break(WireError(str(exc or error)))
        else:
            self._wake()

    def _drop(self, reader: AnswerReader | None) -> None:
        """There is more than was asked for: whatever it is, the next answer cannot be told from it."""
        if reader is None:
            self.close()
        else:
            reader.keeps_open = False

    @property
    def _under_way(self) -> AnswerReader:
        if self._broken is not None:
            raise self._broken
        assert self._reader is not None
        return self._reader

    @property
    def _head(self) -> Head:
        head = self._under_way.head
        assert head is not None
        return head

    def _take_unread(self) -> bytes:
        unread = self._unread
        body = unread[0] if len(unread) == 1 else b"".join(unread)
        unread.clear()
        return body

    async def _news(self) -> None:
        if self._broken is None:
            self._waiting = self._loop.create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        if self._broken is not None:
            raise self._broken

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _break(self, error: Exception) -> None:
        self._broken = error
        self._wake()
        if self._transport is not None:
            self._transport.abort()


class Lines:
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
        self._standing = _lines(self.headers)
        self._firsts: dict[tuple[str, URL], bytes] = {}
        self._idle: list[Line] = []
        self._addresses: Addresses = []
        self._addresses_until = 0.0
        self._looking_up = asyncio.Lock()
        self._keeps_alive = keeps_alive
        self.is_closed = False

    async def send(self, method: str, url: URL, body: bytes, headers: Headers | None) -> Line:
        """The connection with the head of the answer. Raises WireError."""
        line = self._take() or await self._connect()
        line.sent_headers = self._all_headers(headers) if headers else self.headers
        try:
            length = b"" if method == "GET" else b"Content-Length: %d\r\n" % len(body)
            line.send(b"%b%b\r\n%b" % (self._head(method, url, headers), length, body))
            await line.head()
            line.has_answered = line.has_answered or method != "GET"
        except BaseException:
            line.close()
            raise
        return line

    def give_back(self, line: Line) -> None:
        if self.is_closed or not self._keeps_alive:
            line.close()
            return
        line.idle_since = asyncio.get_running_loop().time()
        self._idle.append(line)

    def forget(self, line: Line) -> None:
        if line in self._idle:
            self._idle.remove(line)

    async def aclose(self) -> None:
        """Those under way are closed with their answers."""
        self.is_closed = True
        idle, self._idle = self._idle, []
        for line in idle:
            line.close()

    def _take(self) -> Line | None:
        if not self._idle:
            return None
        fresh_since = asyncio.get_running_loop().time() - _IDLE
        while self._idle:
            line = self._idle.pop()
            if line.is_usable and line.idle_since >= fresh_since:
                return line
            line.close()
        return None

    async def _connect(self) -> Line:
        try:
            async with asyncio.timeout(_CONNECT_WITHIN):
                return await self._try_addresses(await self._look_up())
        except TimeoutError as error:
            raise NoConnectionInTime from error

    async def _try_addresses(self, addresses: Addresses) -> Line:
        loop, failed = asyncio.get_running_loop(), OSError("it has no address")
        for family, _, _, _, place in addresses:
            try:
                _, line = await loop.create_connection(lambda: Line(self), place[0], place[1], family=family)
            except OSError as error:
                failed = error
            else:
                return line
        raise NoConnection(str(failed)) from failed

    async def _look_up(self) -> Addresses:
        """All who connect at the same time ask once."""
        loop = asyncio.get_running_loop()
        async with self._looking_up:
            if loop.time() >= self._addresses_until:
                try:
                    self._addresses = await loop.getaddrinfo(self._root.host, self._root.port, type=socket.SOCK_STREAM)
                except OSError as error:
                    raise NoConnection(str(error)) from error
                self._addresses_until = loop.time() + _ADDRESS_GOOD_FOR
        return self._addresses

    def _head(self, method: str, url: URL, headers: Headers | None) -> bytes:
        """Raises ValueError for a header that would end a line early."""
        first = self._firsts.get((method, url))
        if first is None:
            line = f"{method} {url.raw_path_qs} HTTP/1.1\r\nHost: {url.host_port_subcomponent}\r\n"
            first = self._firsts[method, url] = line.encode("ascii")
        return first + (_lines(self._all_headers(headers)) if headers else self._standing)

    def _all_headers(self, headers: Headers) -> Headers:
        """With those of one request, which go before those of every one."""
        own = {name.lower() for name in headers}
        return {**{name: value for name, value in self.headers.items() if name.lower() not in own}, **headers}


def _lines(headers: Headers) -> bytes:
    """Raises ValueError for what would end a line early."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
        raise ValueError("a header has a line end in it")
    return lines.encode("latin-1", errors="replace")
