"""HTTP/1.1 response parser without I/O: the caller feeds it the bytes of a response in pieces of any size."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

from ...content_decoder import BadContent, ContentDecoder, decoder_for
from .transport import MAX_BODY_BYTES, MAX_STREAM_BYTES, format_size

_MAX_HEAD_BYTES = 64 * 1024
_MAX_FIELDS = 256
_MAX_INTERIM_RESPONSES = 16
_MAX_CACHED_HEAD = 4096
"""Characters of a head whose lines are cached."""
_SWITCHING_PROTOCOLS = 101
_STATUS_LINE = re.compile(r"HTTP/1\.(\d) ([1-9]\d\d)(?: [^\r\n\0]*)?", re.ASCII)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_WITHOUT_BODY = (204, 304)
_MAX_LENGTH_DIGITS = 18
"""Digits of a Content-Length header."""
_LENGTH = re.compile(rf"[0-9]{{1,{_MAX_LENGTH_DIGITS}}}")
_MAX_LINE_BYTES = 1024
_MAX_TRAILER_BYTES = 64 * 1024
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?", re.DOTALL)


class ProtocolError(Exception):
    """The bytes are not a valid HTTP response."""


class ResponseTooLarge(ProtocolError):
    """The body is larger than its limit."""


class ResponseHead(NamedTuple):
    """Status and headers of a response. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class ResponseParser:
    """Parser for one response. `feed` returns the part of the body that the bytes contain, decoded."""

    __slots__ = ("_body", "_buffer", "_decoder", "_interim", "_limit", "_size", "head", "is_complete", "keep_alive")

    def __init__(self, limit: int = MAX_STREAM_BYTES) -> None:
        """`limit`: the limit of the body in bytes, after decoding."""
        self.head: ResponseHead | None = None
        self.is_complete = False
        self.keep_alive = True
        """Whether the connection can be used for another request."""
        self._limit = limit
        self._size = 0
        self._interim = 0
        self._buffer = b""
        self._body: _Body | None = None
        self._decoder: ContentDecoder | None = None

    def set_limit(self, limit: int) -> None:
        """Changes the limit of the body. Raises ResponseTooLarge if the body is known to exceed it."""
        self._limit = limit if self._decoder is None else min(limit, MAX_BODY_BYTES)
        expected = self._body.left if isinstance(self._body, _FixedBody) and self._decoder is None else 0
        if self._size + expected > self._limit:
            raise self._too_large()

    def feed(self, data: bytes) -> bytes:
        """Parses the next bytes, and returns their part of the body. Raises ProtocolError."""
        if self._body is None:
            data = self._read_head(data)
            if self._body is None:
                return b""
        body = self._body.feed(data)
        if self._decoder is not None:
            with _translated_content():
                body = self._decoder.feed(body, self._limit - self._size)
        self._size += len(body)
        if self._size > self._limit:
            raise self._too_large()
        if self._body.is_finished:
            self._finish()
            self.keep_alive = self.keep_alive and not self._body.has_more
        return body

    def end(self) -> None:
        """The connection was closed. Raises ProtocolError for an incomplete response."""
        self.keep_alive = False
        if not isinstance(self._body, _UntilCloseBody):
            raise ProtocolError("the response was truncated: the connection was closed before its end")
        self._finish()

    def _finish(self) -> None:
        if self._decoder is not None:
            with _translated_content():
                self._decoder.close()
        self.is_complete = True

    def _read_head(self, data: bytes) -> bytes:
        """Parses the head, and returns the bytes that follow it."""
        data = self._buffer + data if self._buffer else data
        while self._body is None:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if data.count(b"\n") != data.count(b"\r\n"):
                    raise ProtocolError("a header line does not end in CRLF")
                if len(data) > _MAX_HEAD_BYTES:
                    raise ProtocolError(f"the response head is larger than {format_size(_MAX_HEAD_BYTES)}")
                self._buffer = data
                return b""
            if end > _MAX_HEAD_BYTES:
                raise ProtocolError(f"the response head is larger than {format_size(_MAX_HEAD_BYTES)}")
            head, data = data[:end], data[end + 4 :]
            self._parse_head(head)
        self._buffer = b""
        return data

    def _parse_head(self, head: bytes) -> None:
        parsed = (_parse if len(head) < _MAX_CACHED_HEAD else _parse.__wrapped__)(head)
        status = parsed.head.status
        if status < 200:  # the final response is still to come
            self._interim += 1
            if status == _SWITCHING_PROTOCOLS or self._interim > _MAX_INTERIM_RESPONSES:
                raise ProtocolError(f"unexpected interim status {status}")
            return
        self.head = parsed.head
        self.keep_alive = parsed.keep_alive
        length = parsed.length
        self._body = _FixedBody(length) if length >= 0 else _ChunkedBody() if length == _CHUNKED else _UntilCloseBody()
        if parsed.content_encoding is not None:
            self._decode(parsed.content_encoding)

    def _decode(self, encoding: str) -> None:
        with _translated_content():
            self._decoder = decoder_for(encoding)
        self.set_limit(self._limit)  # one packet is decompressed in one go, so the lower limit applies

    def _too_large(self) -> ResponseTooLarge:
        return ResponseTooLarge(f"the body is larger than {format_size(self._limit)}")


@contextmanager
def _translated_content() -> Iterator[None]:
    """Raises ProtocolError for a body that does not match its Content-Encoding."""
    try:
        yield
    except BadContent as error:
        raise ProtocolError(str(error)) from error


class _ParsedHead(NamedTuple):
    """A head, and what follows from it for the body and the connection."""

    head: ResponseHead
    keep_alive: bool
    length: int
    """Bytes of the body, or one of the constants."""
    content_encoding: str | None


_CHUNKED, _UNTIL_CLOSE = -1, -2


# Servers send the same heads again: all but the length and the date of answers is the same as a rule.
@lru_cache(maxsize=256)
def _parse(head: bytes) -> _ParsedHead:
    """Raises ProtocolError."""
    first, *lines = head.decode("latin-1").split("\r\n")
    is_cached = len(head) < _MAX_CACHED_HEAD
    minor, status = _status(first) if is_cached else _status.__wrapped__(first)
    headers = _fields(lines, _field if is_cached else _field.__wrapped__)
    parsed = ResponseHead(status, headers)
    if status < 200:
        return _ParsedHead(parsed, True, 0, None)
    connection = headers["connection"].lower() if "connection" in headers else ""
    keep_alive = "close" not in connection and (minor != "0" or "keep-alive" in connection)
    if "transfer-encoding" in headers and ("content-length" in headers or minor == "0"):
        keep_alive = False  # RFC 9112, 6.1: bytes that follow may be smuggled
    encoding = None if status in _WITHOUT_BODY else headers.get("content-encoding")
    return _ParsedHead(parsed, keep_alive, _body_length(status, headers), encoding)


def _fields(lines: list[str], parse: Callable[[str], tuple[str, str]]) -> dict[str, str]:
    """Headers by name. Repeated ones are joined (RFC 9110, 5.3), folded ones unfolded."""
    if len(lines) > _MAX_FIELDS:
        raise ProtocolError(f"the response head has {len(lines)} lines, more than {_MAX_FIELDS}")
    headers: dict[str, str] = {}
    last = ""
    for line in lines:
        name, value = parse(line)
        if name in headers:
            headers[name] += f", {value}"
        elif name:
            headers[name] = value
        elif last:
            headers[last] += f" {value}"
            continue
        else:
            raise ProtocolError(f"invalid header line {line[:40]!r}")
        last = name
    return headers


# The lines of other heads are nearly the same each time, too.
@lru_cache(maxsize=64)
def _status(line: str) -> tuple[str, int]:
    """Minor version and status of a status line. Raises ProtocolError."""
    found = _STATUS_LINE.fullmatch(line)
    if found is None:
        raise ProtocolError(f"invalid status line {line[:40]!r}")
    return found[1], int(found[2])


@lru_cache(maxsize=1024)
def _field(line: str) -> tuple[str, str]:
    """Name in lower case and value of a header line; no name for a line that continues the one before it.
    Raises ProtocolError."""
    name, colon, value = line.partition(":")
    if "\r" in line or "\n" in line or "\0" in line:
        raise ProtocolError("a header line contains a line break or a NUL")
    if line[:1] in (" ", "\t"):
        return "", line.strip(" \t")
    if not (colon and _TOKEN.fullmatch(name)):
        raise ProtocolError(f"invalid header line {line[:40]!r}")
    return name.lower(), value.strip(" \t")


def _body_length(status: int, headers: Mapping[str, str]) -> int:
    """Length of the body, or how its end is marked, as the head announces it. Raises ProtocolError."""
    if status in _WITHOUT_BODY:
        return 0
    coding = headers.get("transfer-encoding")
    if coding is not None:
        if coding.lower() != "chunked":
            raise ProtocolError(f"unsupported Transfer-Encoding {coding[:40]!r}: only chunked is supported")
        return _CHUNKED
    length = headers.get("content-length")
    return _UNTIL_CLOSE if length is None else _length(length)


def _length(value: str) -> int:
    """Value of Content-Length. The same length may be repeated. Raises ProtocolError for different ones."""
    if _LENGTH.fullmatch(value):
        return int(value)
    first, *others = {part.strip(" \t") for part in value.split(",")}
    if others:
        raise ProtocolError(f"conflicting Content-Length values {value[:40]!r}")
    if not (first.isascii() and first.isdecimal()):
        raise ProtocolError(f"invalid Content-Length {first[:40]!r}")
    if len(first) > _MAX_LENGTH_DIGITS:
        raise ResponseTooLarge(f"its Content-Length has {len(first)} digits")
    return int(first)


@lru_cache(maxsize=1024)
def _chunk_size(line: bytes) -> int:
    found = _CHUNK_SIZE.fullmatch(line)
    if found is None or b"\n" in line or b"\r" in line or len(line) > _MAX_LINE_BYTES:
        raise ProtocolError(f"invalid chunk size {line[:40]!r}")
    return int(found[1], 16)


class _FixedBody:
    """Body of a known length."""

    __slots__ = ("has_more", "left")

    def __init__(self, length: int) -> None:
        self.left = length
        self.has_more = False

    @property
    def is_finished(self) -> bool:
        return not self.left

    def feed(self, data: bytes) -> bytes:
        if len(data) > self.left:
            self.has_more = True
            data = data[: self.left]
        self.left -= len(data)
        return data


class _UntilCloseBody:
    """Body that ends with the connection."""

    __slots__ = ()
    is_finished = False
    has_more = False

    def feed(self, data: bytes) -> bytes:
        return data


class _ChunkedBody:
    """Body in chunks, the last of size 0. Trailers are discarded."""

    __slots__ = ("_buffer", "_left", "_needs_end", "_trailers", "has_more", "is_finished")

    def __init__(self) -> None:
        self._buffer = b""
        self._left = 0
        """Bytes to come of the current chunk."""
        self._needs_end = False
        """The data of a chunk is complete, but not the CRLF after it."""
        self._trailers: int | None = None
        """Bytes of trailers so far; None before the last chunk."""
        self.is_finished = False
        self.has_more = False

    def feed(self, data: bytes) -> bytes:
        data = self._buffer + data if self._buffer else data
        parts: list[bytes] = []
        at = 0
        while not self.is_finished:
            if self._left:
                text = data[at : at + self._left]
                if not text:
                    break
                parts.append(text)
                at += len(text)
                self._left -= len(text)
                self._needs_end = not self._left
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            if self._needs_end:
                if end != at:
                    raise ProtocolError("a chunk is longer than its declared size")
                self._needs_end = False
            else:
                self._parse_line(data[at:end])
            at = end + 2
        self._buffer = data[at:]
        self.has_more = self.is_finished and bool(self._buffer)
        if self._buffer and not self.is_finished:
            self._check_partial_line()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _check_partial_line(self) -> None:
        """Rejects an incomplete line as soon as it cannot become valid, instead of waiting for more."""
        if self._needs_end and self._buffer != b"\r":
            raise ProtocolError("a chunk is longer than its declared size")
        if b"\n" in self._buffer or len(self._buffer) > _MAX_LINE_BYTES:
            raise ProtocolError(f"unterminated chunk size {self._buffer[:40]!r}")

    def _parse_line(self, line: bytes) -> None:
        if self._trailers is not None:
            self._trailers += len(line) + 2
            if self._trailers > _MAX_TRAILER_BYTES or len(line) > _MAX_LINE_BYTES or b"\n" in line or b"\r" in line:
                raise ProtocolError(f"invalid or oversized trailers at {line[:40]!r}")
            self.is_finished = not line
            return
        self._left = _chunk_size(line)
        if not self._left:
            self._trailers = 0


_Body = _FixedBody | _ChunkedBody | _UntilCloseBody
