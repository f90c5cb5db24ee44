"""One connection to a server that speaks plain HTTP, used for one request after the other."""

import asyncio
import select
import socket
from typing import Protocol, cast

from multidict import CIMultiDict

from .h1_parser import ProtocolError, ResponseHead, ResponseParser, ResponseTooLarge
from .transport import (
    LARGEST_BODY,
    LARGEST_STREAM,
    BodyTooLarge,
    ConnectionDropped,
    Headers,
    StaleConnection,
    TransportError,
)

_MOST_UNREAD = 256 * 1024


class ConnectionOwner(Protocol):
    """Where a connection belongs while no answer is read from it."""

    @property
    def headers(self) -> Headers: ...

    def give_back(self, line: "PlainConnection") -> None: ...

    def forget(self, line: "PlainConnection") -> None: ...


class PlainConnection(asyncio.Protocol):
    """One connection, and the answer to its last request. Raises WireError for one that breaks."""

    def __init__(self, pool: ConnectionOwner) -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader: ResponseParser | None = None
        self._unread: list[bytes] = []
        self._waiting: asyncio.Future[None] | None = None
        self._wants_all = False
        self._is_paused = False
        self._input: select.poll | None = None
        self._broken: Exception | None = None
        self._is_silent = True
        self.has_answered = False  # to another request than for a page, as they are asked for at the start
        self.idle_since = 0.0
        self.sent_headers: Headers = pool.headers

    @property
    def is_usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_quiet(self) -> bool:
        """Nothing has come since the last answer, neither bytes nor the end: not even what the loop has yet to read."""
        return self._input is not None and not self._input.poll(0)

    def send(self, request: bytes) -> None:
        assert self._transport is not None
        self._reader = ResponseParser()
        self._unread.clear()
        self._wants_all = False
        self._go_on()
        self._is_silent = True
        self._transport.write(request)

    async def head(self) -> ResponseHead:
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

    async def read(self, most: int = LARGEST_BODY) -> bytes:
        """The whole body."""
        reader, self._wants_all = self._under_way, True
        self._limit(reader, most)
        self._go_on()
        while not reader.is_whole:
            await self._news()
        return self._take_unread()

    async def chunk(self, most: int = LARGEST_STREAM) -> bytes:
        """What has come of the body; empty at its end."""
        if most != LARGEST_STREAM:
            self._limit(self._under_way, most)
        while not (self._unread or self._under_way.is_whole):
            await self._news()
        self._go_on()
        return self._take_unread()

    def close(self) -> None:
        """The answer is not needed any more. A connection that it was read from to its end is used again."""
        reader, self._reader = self._reader, None
        if reader is not None and reader.is_whole and reader.keeps_open and self.is_usable:
            self._pool.give_back(self)
        elif self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        wire = transport.get_extra_info("socket")
        if wire is not None:  # an answer may take minutes: a server whose machine is gone shall be noticed
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._input = select.poll()
            self._input.register(wire.fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        self._is_silent = False
        if reader is None or reader.is_whole:
            self._drop(reader)
            return
        try:
            body = reader.feed(data)
        except ProtocolError as error:
            self._break(_translated(error))
            return
        if body:
            self._unread.append(body)
        if self._waiting is not None and (reader.is_whole or not self._wants_all):
            self._wake()
        elif not self._wants_all and not self._is_paused and sum(map(len, self._unread)) > _MOST_UNREAD:
            self._is_paused = True
            cast(asyncio.Transport, self._transport).pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = self._input = None
        self._pool.forget(self)
        reader = self._reader
        if reader is None or reader.is_whole:
            return
        if reader.head is None:
            dropped = StaleConnection if self.has_answered and self._is_silent else ConnectionDropped
            self._break(dropped("Server disconnected" if exc is None else str(exc)))
            return
        try:
            reader.end()
        except ProtocolError as error:
            self._break(TransportError(str(exc or error)))
        else:
            self._wake()

    def _drop(self, reader: ResponseParser | None) -> None:
        """There is more than was asked for: whatever it is, the next answer cannot be told from it."""
        if reader is None:
            self.close()
        else:
            reader.keeps_open = False

    @property
    def _under_way(self) -> ResponseParser:
        if self._broken is not None:
            raise self._broken
        assert self._reader is not None
        return self._reader

    @property
    def _head(self) -> ResponseHead:
        head = self._under_way.head
        assert head is not None
        return head

    def _take_unread(self) -> bytes:
        unread = self._unread
        body = unread[0] if len(unread) == 1 else b"".join(unread)
        unread.clear()
        return body

    def _limit(self, reader: ResponseParser, most: int) -> None:
        try:
            reader.limit(most)
        except ProtocolError as error:
            self._break(broken := _translated(error))
            raise broken from error

    def _go_on(self) -> None:
        """There is room again for more of the answer."""
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

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


def _translated(error: ProtocolError) -> TransportError:
    if isinstance(error, ResponseTooLarge):
        return BodyTooLarge(str(error))
    return TransportError(f"This is no answer in HTTP: {error}")
