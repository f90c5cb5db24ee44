"""HTTP/1.1 request parser without I/O."""

import functools
import re
from typing import NamedTuple

from ..core.fast_dataclass import dataclass

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 201 * 1024 * 1024
"""A file of 200 MB, OpenAI's limit for a batch, and the form around it."""


class BadRequest(ValueError):
    """Raised for bytes that are not a valid HTTP request. The connection must be closed."""


class HttpRequest(NamedTuple):
    method: bytes
    path: bytes
    body: bytes
    keep_alive: bool
    query: bytes
    fields: bytes
    """The header lines as received, each after its line end."""

    def header(self, name: bytes) -> bytes:
        """The value of a header; empty if it is missing. `name`: in lower case."""
        found = re.search(rb"\r\n%b:([^\r]*)" % re.escape(name), self.fields, re.IGNORECASE)
        return found[1].strip() if found else b""


@dataclass(frozen=True, slots=True)
class _Head:
    method: bytes
    path: bytes
    query: bytes
    fields: bytes
    keep_alive: bool
    length: int
    chunked: bool
    expects_continue: bool


class RequestReader:
    """Incremental parser for the requests of one connection. Raises BadRequest."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: _Head | None = None
        self._chunks = bytearray()

    @property
    def has_bytes(self) -> bool:
        return bool(self._buffer)

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def parse_single(self, data: bytes) -> HttpRequest | None:
        """The request in `data`, if `data` is exactly one and nothing is buffered. Otherwise None, and `feed` must be
        called."""
        end = data.find(b"\r\n\r\n")
        if end < 0 or self._buffer or self._head:
            return None
        head = _parse_head(data[:end])
        if head.chunked or len(data) != end + 4 + head.length:
            return None
        return HttpRequest(head.method, head.path, data[end + 4 :], head.keep_alive, head.query, head.fields)

    def next(self) -> HttpRequest | None:
        """The next complete request, or None if more bytes are needed."""
        head = self._head or self._read_head()
        if head is None:
            return None
        body = self._read_chunks() if head.chunked else self._read_length(head.length)
        if body is None:
            self._head = head
            return None
        self._head = None
        return HttpRequest(head.method, head.path, body, head.keep_alive, head.query, head.fields)

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
                raise BadRequest("a chunk has no valid size") from error
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


@functools.lru_cache(maxsize=1024)
def _parse_head(raw: bytes) -> _Head:
    line, _, fields = raw.partition(b"\r\n")
    parts = line.split(b" ")
    if len(parts) != 3 or not parts[2].startswith(b"HTTP/1."):
        raise BadRequest("the request line is not HTTP/1.1")
    received = b"\r\n" + fields
    fields = received.lower() + b"\r\n"
    path, _, query = parts[1].partition(b"?")
    length = _field(fields, b"\r\ncontent-length:") or b"0"
    if not length.isdigit() or int(length) > MAX_BODY_BYTES:
        raise BadRequest("the content length is invalid or too large")
    connection = _field(fields, b"\r\nconnection:")
    return _Head(
        method=parts[0],
        path=path,
        query=query,
        fields=received,
        keep_alive=connection != b"close" if parts[2] == b"HTTP/1.1" else connection == b"keep-alive",
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
