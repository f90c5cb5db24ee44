"""Plain HTTP connection to a server, used for one request after the other."""

import asyncio
import select
import socket
from typing import Protocol, cast

from multidict import CIMultiDict

from .h1_parser import ProtocolError, ResponseHead, ResponseParser, ResponseTooLarge
from .transport import (
    MAX_BODY_BYTES,
    MAX_STREAM_BYTES,
    BodyTooLarge,
    ConnectionDropped,
    Headers,
    StaleConnection,
    TransportError,
)

_MAX_UNREAD_BYTES = 256 * 1024


class ConnectionOwner(Protocol):
    """The pool that a connection returns to when its response has been read."""

    @property
    def headers(self) -> Headers: ...

    def release(self, connection: "PlainConnection") -> None: ...

    def discard(self, connection: "PlainConnection") -> None: ...


class PlainConnection(asyncio.Protocol):
    """One connection, and the response to its last request. Methods raise TransportError if the connection fails."""

    def __init__(self, pool: ConnectionOwner) -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser: ResponseParser | None = None
        self._unread: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self._wants_all = False
        self._is_paused = False
        self._poll: select.poll | None = None
        self._error: Exception | None = None
        self._has_no_bytes = True
        self.has_answered = False  # only POST requests count: the pages of a probe are fetched with GET
        self.idle_since = 0.0
        self.status = 0
        self.sent_headers: Headers = pool.headers

    @property
    def is_usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def has_no_input(self) -> bool:
        """Whether neither bytes nor the end of the connection arrived since the last response, not even unread by the
        event loop."""
        return self._poll is not None and not self._poll.poll(0)

    def send(self, request: bytes) -> None:
        assert self._transport is not None
        self._parser = ResponseParser()
        self._unread.clear()
        self._wants_all = False
        if self._is_paused:
            self._resume_reading()
        self._has_no_bytes = True
        self._transport.write(request)

    async def head(self) -> ResponseHead:
        parser = self._active_parser
        while parser.head is None:
            await self._more_data()
        self.status = parser.head.status
        return parser.head

    @property
    def headers(self) -> Headers:
        return CIMultiDict(self._head.headers)

    @property
    def content_type(self) -> str:
        return self._head.content_type

    @property
    def is_complete(self) -> bool:
        """Whether the whole response was received and read."""
        return self._active_parser.is_complete and not self._unread

    async def read(self, limit: int = MAX_BODY_BYTES) -> bytes:
        """Reads the whole body."""
        parser, self._wants_all = self._active_parser, True
        self._set_limit(parser, limit)
        if self._is_paused:
            self._resume_reading()
        while not parser.is_complete:
            await self._more_data()
        return self._take_unread()

    async def chunk(self, limit: int = MAX_STREAM_BYTES) -> bytes:
        """Reads the part of the body that has arrived; empty at its end."""
        if limit != MAX_STREAM_BYTES:
            self._set_limit(self._active_parser, limit)
        while not (self._unread or self._active_parser.is_complete):
            await self._more_data()
        if self._is_paused:
            self._resume_reading()
        return self._take_unread()

    def close(self) -> None:
        """Releases the connection to the pool if the response was read to its end; otherwise closes it."""
        parser, self._parser = self._parser, None
        if parser is not None and parser.is_complete and parser.keep_alive and self.is_usable:
            self._pool.release(self)
        elif self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        sock = transport.get_extra_info("socket")
        if sock is not None:  # a response may take minutes: keepalive detects a dead machine
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._poll = select.poll()
            self._poll.register(sock.fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        parser = self._parser
        self._has_no_bytes = False
        if parser is None or parser.is_complete:
            self._on_unexpected_data(parser)
            return
        try:
            body = parser.feed(data)
        except ProtocolError as error:
            self._fail(_translated(error))
            return
        if body:
            self._unread.append(body)
        if self._waiter is not None and (parser.is_complete or not self._wants_all):
            self._wake()
        elif not self._wants_all and not self._is_paused and sum(map(len, self._unread)) > _MAX_UNREAD_BYTES:
            self._is_paused = True
            cast(asyncio.Transport, self._transport).pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = self._poll = None
        self._pool.discard(self)
        parser = self._parser
        if parser is None or parser.is_complete:
            return
        if parser.head is None:
            error_type = StaleConnection if self.has_answered and self._has_no_bytes else ConnectionDropped
            self._fail(error_type("Server disconnected" if exc is None else str(exc)))
            return
        try:
            parser.end()
        except ProtocolError as error:
            self._fail(TransportError(str(exc or error)))
        else:
            self._wake()

    def _on_unexpected_data(self, parser: ResponseParser | None) -> None:
        """Bytes that belong to no request: the connection is not reused, since the next response could not be
        distinguished from them."""
        if parser is None:
            self.close()
        else:
            parser.keep_alive = False

    @property
    def _active_parser(self) -> ResponseParser:
        if self._error is not None:
            raise self._error
        assert self._parser is not None
        return self._parser

    @property
    def _head(self) -> ResponseHead:
        head = self._active_parser.head
        assert head is not None
        return head

    def _take_unread(self) -> bytes:
        unread = self._unread
        body = unread[0] if len(unread) == 1 else b"".join(unread)
        unread.clear()
        return body

    def _set_limit(self, parser: ResponseParser, limit: int) -> None:
        try:
            parser.set_limit(limit)
        except ProtocolError as error:
            self._fail(failure := _translated(error))
            raise failure from error

    def _resume_reading(self) -> None:
        if self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

    def _more_data(self) -> "asyncio.Future[None]":
        """Completes when bytes arrive. Raises the error if the connection fails, or has failed."""
        waiter = self._waiter = self._loop.create_future()
        if self._error is not None:
            self._wake()
        return waiter

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is None or waiter.done():
            return
        if self._error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(self._error)

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._wake()
        if self._transport is not None:
            self._transport.abort()


def _translated(error: ProtocolError) -> TransportError:
    if isinstance(error, ResponseTooLarge):
        return BodyTooLarge(str(error))
    return TransportError(f"invalid HTTP response: {error}")
