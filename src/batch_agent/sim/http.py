"""HTTP/1.1 server connection on a raw asyncio transport, with little overhead per request."""

import asyncio
import socket
import struct
from collections.abc import Callable
from http import HTTPStatus
from typing import cast

from .http_parser import BadRequest, HttpRequest, RequestReader

_RESET_DELAY_S = 0.005
"""Gives written data time to leave before the reset, which would discard it."""

_REASONS = {status.value: status.phrase for status in HTTPStatus}
_OK_JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


class ClientConnection(asyncio.Protocol):
    """One client. Requests are handled in order, each by `reply`, or by `open_stream` to `end_stream`."""

    def __init__(
        self, handle: Callable[[HttpRequest, "ClientConnection"], None], open_connections: set["ClientConnection"]
    ) -> None:
        self.on_disconnect: Callable[[], None] | None = None
        self.header_lines = b""
        """Further headers of the current response, each with its line end."""
        self._handle = handle
        self._open_connections = open_connections
        self._reader = RequestReader()
        self._transport: asyncio.Transport | None = None
        self._is_busy = False
        self._keep_alive = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        self._open_connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._open_connections.discard(self)
        on_disconnect, self.on_disconnect = self.on_disconnect, None
        if on_disconnect:
            on_disconnect()

    def data_received(self, data: bytes) -> None:
        try:
            if not self._is_busy and (request := self._reader.parse_single(data)):
                self._handle_request(request)
                return
            self._reader.feed(data)
            self._handle_buffered()
        except BadRequest as error:
            self._reject(error)

    def reply(self, status: int, body: bytes, content_type: bytes = b"application/json", extra: bytes = b"") -> None:
        """Sends a complete response. `extra`: further header lines, each with its line end."""
        extra += self.header_lines
        if status == 200 and not extra and content_type == b"application/json":
            head = _OK_JSON % len(body)
        else:
            reason = _REASONS.get(status, "Unknown").encode()
            line = b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\n%b" % (status, reason, content_type, extra)
            head = line + b"content-length: %d\r\n\r\n" % len(body)
        self._write(head + body)
        self._finish()

    def open_stream(self, events: bytes) -> None:
        self._write(_SSE[:-2] + self.header_lines + b"\r\n" + _chunk(events))

    def send(self, events: bytes) -> None:
        self._write(_chunk(events))

    def end_stream(self, events: bytes) -> None:
        self._write(_chunk(events) + b"0\r\n\r\n")
        self._finish()

    def reply_short(self, body: bytes) -> None:
        """Announces all of `body`, sends half of it, and closes the connection."""
        self._write(_OK_JSON % len(body) + body[: len(body) // 2])
        self.close()

    def reset(self) -> None:
        """Closes with a TCP reset, after giving written data time to leave."""
        asyncio.get_running_loop().call_later(_RESET_DELAY_S, self._reset_now)

    def close(self) -> None:
        if self._transport:
            self._transport.close()

    def _handle_request(self, request: HttpRequest) -> None:
        self._is_busy = True
        self._keep_alive = request.keep_alive
        self._handle(request, self)

    def _handle_buffered(self) -> None:
        while not self._is_busy and self._transport and (request := self._reader.next()):
            self._handle_request(request)
        if self._reader.wants_continue():
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _handle_next(self) -> None:
        try:
            self._handle_buffered()
        except BadRequest as error:
            self._reject(error)

    def _reject(self, error: BadRequest) -> None:
        self._keep_alive = False
        self.reply(400, b'{"error":{"message":"%b","type":"BadRequestError","code":400}}' % str(error).encode())

    def _finish(self) -> None:
        self._is_busy = False
        self.header_lines = b""
        self.on_disconnect = None
        if not self._keep_alive:
            self.close()
        elif self._reader.has_bytes:
            asyncio.get_running_loop().call_soon(self._handle_next)

    def _write(self, data: bytes) -> None:
        if self._transport:
            self._transport.write(data)

    def _reset_now(self) -> None:
        if self._transport:
            raw: socket.socket | None = self._transport.get_extra_info("socket")
            if raw is not None:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()


def _chunk(data: bytes) -> bytes:
    # An empty chunk would end the body.
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
