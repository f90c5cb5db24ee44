"""HTTP/1.1 for one server, as cheaply as Python can: a reader without I/O, and a connection on a raw transport."""

import asyncio
import functools
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import cast

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 * 1024 * 1024
_RESET_DELAY_S = 0.005
"""Lets what was written leave before a reset would discard it."""

_REASONS = {status.value: status.phrase for status in HTTPStatus}
_OK_JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


class BadRequest(ValueError):
    """Bytes that are no HTTP request; the connection cannot go on."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: bytes
    path: bytes
    body: bytes
    keep_alive: bool


@dataclass(frozen=True, slots=True)
class _Head:
    method: bytes
    path: bytes
    keep_alive: bool
    length: int
    chunked: bool
    expects_continue: bool


class RequestReader:
    """Requests out of bytes that arrive in any pieces. Raises BadRequest."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: _Head | None = None
        self._chunks = bytearray()

    @property
    def has_bytes(self) -> bool:
        return bool(self._buffer)

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> HttpRequest | None:
        """The next complete request, or None until more bytes come."""
        head = self._head or self._read_head()
        if head is None:
            return None
        body = self._read_chunks() if head.chunked else self._read_length(head.length)
        if body is None:
            self._head = head
            return None
        self._head = None
        return HttpRequest(head.method, head.path, body, head.keep_alive)

    def wants_continue(self) -> bool:
        """Whether the client waits for `100 Continue` before it sends the body."""
        return self._head is not None and self._head.expects_continue and not self._buffer

    def _read_head(self) -> _Head | None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise BadRequest("the request head is too long")
            return None
        raw = bytes(self._buffer[:end])
        del self._buffer[: end + 4]
        return _parse_head(raw)

    def _read_length(self, length: int) -> bytes | None:
        if len(self._buffer) < length:
            return None
        body = bytes(self._buffer[:length])
        del self._buffer[:length]
        return body

    def _read_chunks(self) -> bytes | None:
        while (end := self._buffer.find(b"\r\n")) >= 0:
            try:
                size = int(bytes(self._buffer[:end]).partition(b";")[0], 16)
            except ValueError as error:
                raise BadRequest("a chunk has no size") from error
            if size + len(self._chunks) > MAX_BODY_BYTES:
                raise BadRequest("the body is too long")
            if len(self._buffer) < end + 2 + size + 2:
                return None
            self._chunks += self._buffer[end + 2 : end + 2 + size]
            del self._buffer[: end + 2 + size + 2]
            if not size:
                body = bytes(self._chunks)
                self._chunks.clear()
                return body
        return None


class Connection(asyncio.Protocol):
    """One client. Requests are handled one after the other; each gets `reply`, or `open_stream` to `end_stream`."""

    def __init__(
        self, handle: Callable[[HttpRequest, "Connection"], None], open_connections: set["Connection"]
    ) -> None:
        self.on_gone: Callable[[], None] | None = None
        self._handle = handle
        self._open_connections = open_connections
        self._reader = RequestReader()
        self._transport: asyncio.Transport | None = None
        self._is_busy = False
        self._keep_alive = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._open_connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._open_connections.discard(self)
        gone, self.on_gone = self.on_gone, None
        if gone:
            gone()

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        if not self._is_busy:
            self._take_requests()

    def reply(self, status: int, body: bytes, content_type: bytes = b"application/json", extra: bytes = b"") -> None:
        """Answer at once; `extra` is more header lines, each with its line end."""
        if status == 200 and not extra and content_type == b"application/json":
            head = _OK_JSON % len(body)
        else:
            reason = _REASONS.get(status, "Unknown").encode()
            line = b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\n%b" % (status, reason, content_type, extra)
            head = line + b"content-length: %d\r\n\r\n" % len(body)
        self._write(head + body)
        self._finish()

    def open_stream(self) -> None:
        self._write(_SSE)

    def send(self, events: bytes) -> None:
        self._write(b"%x\r\n%b\r\n" % (len(events), events))

    def end_stream(self) -> None:
        self._write(b"0\r\n\r\n")
        self._finish()

    def reply_short(self, body: bytes) -> None:
        """Promise all of `body`, send half of it and hang up."""
        self._write(_OK_JSON % len(body) + body[: len(body) // 2])
        self.close()

    def reset(self) -> None:
        """Hang up with a TCP reset, after what was written has had time to leave."""
        asyncio.get_running_loop().call_later(_RESET_DELAY_S, self._reset_now)

    def close(self) -> None:
        if self._transport:
            self._transport.close()

    def _take_requests(self) -> None:
        try:
            while not self._is_busy and self._transport and (request := self._reader.next()):
                self._is_busy = True
                self._keep_alive = request.keep_alive
                self._handle(request, self)
            if self._reader.wants_continue():
                self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
        except BadRequest as error:
            self._keep_alive = False
            self.reply(400, b'{"error":{"message":"%b","type":"BadRequestError","code":400}}' % str(error).encode())

    def _finish(self) -> None:
        self._is_busy = False
        self.on_gone = None
        if not self._keep_alive:
            self.close()
        elif self._reader.has_bytes:
            asyncio.get_running_loop().call_soon(self._take_requests)

    def _write(self, data: bytes) -> None:
        if self._transport:
            self._transport.write(data)

    def _reset_now(self) -> None:
        if self._transport:
            raw: socket.socket | None = self._transport.get_extra_info("socket")
            if raw is not None:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()


@functools.lru_cache(maxsize=1024)
def _parse_head(raw: bytes) -> _Head:
    line, _, fields = raw.partition(b"\r\n")
    words = line.split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        raise BadRequest("the request line is not HTTP/1.1")
    fields = b"\r\n" + fields.lower() + b"\r\n"
    length = _field(fields, b"\r\ncontent-length:") or b"0"
    if not length.isdigit() or int(length) > MAX_BODY_BYTES:
        raise BadRequest("the content length is no number of bytes, or too long")
    connection = _field(fields, b"\r\nconnection:")
    return _Head(
        method=words[0],
        path=words[1].partition(b"?")[0],
        keep_alive=connection != b"close" if words[2] == b"HTTP/1.1" else connection == b"keep-alive",
        length=int(length),
        chunked=_field(fields, b"\r\ntransfer-encoding:") == b"chunked",
        expects_continue=_field(fields, b"\r\nexpect:") == b"100-continue",
    )


def _field(fields: bytes, name: bytes) -> bytes:
    start = fields.find(name)
    if start < 0:
        return b""
    start += len(name)
    return fields[start : fields.index(b"\r\n", start)].strip()
