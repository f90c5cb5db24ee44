"""HTTP/1.1 answers from bytes. Knows no sockets: whoever has the bytes feeds them, in pieces of any size.

The body of an HTTP/1.1 answer: where it ends, by its length, its chunks or the end of the connection.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from ...core.content_encoding import BadContent, ContentDecoder, decoder_for
from .transport import LARGEST_BODY, LARGEST_STREAM, declared_size

WITHOUT_BODY = (204, 304)
_LONGEST_NUMBER = 18
"""Digits of a Content-Length."""
_LONGEST_LINE = 1024
_LONGEST_TRAILERS = 64 * 1024
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?", re.DOTALL)


class ProtocolError(Exception):
    """What came is no HTTP answer."""


class ResponseTooLarge(ProtocolError):
    """The body has more bytes than are read of one."""


def body_of(status: int, headers: Mapping[str, str]) -> "Body":
    """The framing that the head of an answer announces. Raises BadAnswer."""
    if status in WITHOUT_BODY:
        return FixedLengthBody(0)
    coding = headers.get("transfer-encoding")
    if coding is not None:
        if coding.lower() != "chunked":
            raise ProtocolError(f"its Transfer-Encoding is {coding[:40]!r}, and only chunked is known")
        return ChunkedBody()
    length = headers.get("content-length")
    return UntilCloseBody() if length is None else FixedLengthBody(_length(length))


def _length(said: str) -> int:
    """The same length may be said several times. Raises BadAnswer for different ones."""
    if len(said) <= _LONGEST_NUMBER and said.isascii() and said.isdecimal():
        return int(said)
    first, *others = {part.strip(" \t") for part in said.split(",")}
    if others:
        raise ProtocolError(f"it has several lengths: {said[:40]!r}")
    if not (first.isascii() and first.isdecimal()):
        raise ProtocolError(f"its length is {first[:40]!r}")
    if len(first) > _LONGEST_NUMBER:
        raise ResponseTooLarge(f"its length is a number of {len(first)} digits")
    return int(first)


@lru_cache(maxsize=1024)
def _chunk_size(line: bytes) -> int:
    found = _CHUNK_SIZE.fullmatch(line)
    if found is None or b"\n" in line or b"\r" in line or len(line) > _LONGEST_LINE:
        raise ProtocolError(f"the size of a chunk is {line[:40]!r}")
    return int(found[1], 16)


class FixedLengthBody:
    """So many bytes."""

    __slots__ = ("has_more", "left")

    def __init__(self, length: int) -> None:
        self.left = length
        self.has_more = False

    @property
    def is_over(self) -> bool:
        return not self.left

    def feed(self, data: bytes) -> bytes:
        if len(data) > self.left:
            self.has_more = True
            data = data[: self.left]
        self.left -= len(data)
        return data


class UntilCloseBody:
    """All until the connection is closed."""

    __slots__ = ()
    is_over = False
    has_more = False

    def feed(self, data: bytes) -> bytes:
        return data


class ChunkedBody:
    """Chunks with their sizes before them, the last one of size 0; trailers after it are passed over."""

    __slots__ = ("_buffer", "_left", "_needs_end", "_trailers", "has_more", "is_over")

    def __init__(self) -> None:
        self._buffer = b""
        self._left = 0
        """Of the chunk under way."""
        self._needs_end = False
        """The text of a chunk is there, but not the line end behind it."""
        self._trailers: int | None = None
        """Bytes of them, from the last chunk on."""
        self.is_over = False
        self.has_more = False

    def feed(self, data: bytes) -> bytes:
        data = self._buffer + data if self._buffer else data
        parts: list[bytes] = []
        at = 0
        while not self.is_over:
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
                    raise ProtocolError("a chunk is longer than its size")
                self._needs_end = False
            else:
                self._take_line(data[at:end])
            at = end + 2
        self._buffer = data[at:]
        self.has_more = self.is_over and bool(self._buffer)
        if self._buffer and not self.is_over:
            self._check_beginning()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _check_beginning(self) -> None:
        """Of a line whose end has not come: nobody shall wait for one that cannot come."""
        if self._needs_end and self._buffer != b"\r":
            raise ProtocolError("a chunk is longer than its size")
        if b"\n" in self._buffer or len(self._buffer) > _LONGEST_LINE:
            raise ProtocolError(f"the size of a chunk has no end: {self._buffer[:40]!r}")

    def _take_line(self, line: bytes) -> None:
        if self._trailers is not None:
            self._trailers += len(line) + 2
            if self._trailers > _LONGEST_TRAILERS or len(line) > _LONGEST_LINE or b"\n" in line or b"\r" in line:
                raise ProtocolError(f"its trailers have no end, or the line {line[:40]!r}")
            self.is_over = not line
            return
        self._left = _chunk_size(line)
        if not self._left:
            self._trailers = 0


Body = FixedLengthBody | ChunkedBody | UntilCloseBody

_LONGEST_HEAD = 64 * 1024
_MOST_FIELDS = 256
_MOST_INTERIM = 16
_LONGEST_KEPT = 256
_SWITCHING = 101
_FIRST_LINE = re.compile(r"HTTP/1\.(\d) ([1-9]\d\d)(?: [^\r\n\0]*)?", re.ASCII)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class ResponseHead(NamedTuple):
    """What an answer begins with. The names of headers are in small letters."""

    status: int
    headers: Mapping[str, str]

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class ResponseParser:
    """One answer to one request. `feed` gives the part of the body that the bytes hold."""

    __slots__ = ("_body", "_buffer", "_decoder", "_interim", "_most", "_size", "head", "is_whole", "keeps_open")

    def __init__(self, most: int = LARGEST_STREAM) -> None:
        """`most`: bytes of the body, as they are after decoding."""
        self.head: ResponseHead | None = None
        self.is_whole = False
        self.keeps_open = True
        """Whether the connection can carry another answer after this one."""
        self._most = most
        self._size = 0
        self._interim = 0
        self._buffer = b""
        self._body: Body | None = None
        self._decoder: ContentDecoder | None = None

    def limit(self, most: int) -> None:
        """Sets the limit of a body that is under way. Raises AnswerTooLarge if it is known to exceed it."""
        self._most = most if self._decoder is None else min(most, LARGEST_BODY)
        coming = self._body.left if isinstance(self._body, FixedLengthBody) and self._decoder is None else 0
        if self._size + coming > self._most:
            raise self._too_large()

    def feed(self, data: bytes) -> bytes:
        """Raises BadAnswer."""
        if self._body is None:
            data = self._begin(data)
            if self._body is None:
                return b""
        body = self._body.feed(data)
        if self._decoder is not None:
            body = self._decoded(body)
        self._size += len(body)
        if self._size > self._most:
            raise self._too_large()
        if self._body.is_over:
            self._finish()
            self.keeps_open = self.keeps_open and not self._body.has_more
        return body

    def end(self) -> None:
        """No more bytes come. Raises BadAnswer for an answer that is not whole."""
        self.keeps_open = False
        if not isinstance(self._body, UntilCloseBody):
            raise ProtocolError("the answer broke off before its end")
        self._finish()

    def _finish(self) -> None:
        if self._decoder is not None:
            try:
                self._decoder.close()
            except BadContent as error:
                raise ProtocolError(str(error)) from error
        self.is_whole = True

    def _begin(self, data: bytes) -> bytes:
        """Reads the head; what follows it of the bytes."""
        data = self._buffer + data if self._buffer else data
        while self._body is None:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if data.count(b"\n") != data.count(b"\r\n"):
                    raise ProtocolError("a line of its head does not end in CRLF")
                if len(data) > _LONGEST_HEAD:
                    raise ProtocolError(f"its head has more than {declared_size(_LONGEST_HEAD)}")
                self._buffer = data
                return b""
            if end > _LONGEST_HEAD:
                raise ProtocolError(f"its head has more than {declared_size(_LONGEST_HEAD)}")
            head, data = data[:end], data[end + 4 :]
            self._take(head)
        self._buffer = b""
        return data

    def _take(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        minor, status = _status(first) if len(first) < _LONGEST_KEPT else _status.__wrapped__(first)
        headers = _fields(lines)
        if status < 200:  # the answer itself is still to come
            self._interim += 1
            if status == _SWITCHING or self._interim > _MOST_INTERIM:
                raise ProtocolError(f"it answers with {status}, which nobody asked for")
            return
        self.head = ResponseHead(status, headers)
        connection = headers.get("connection", "").lower()
        self.keeps_open = "close" not in connection and (minor != "0" or "keep-alive" in connection)
        if "transfer-encoding" in headers and ("content-length" in headers or minor == "0"):
            self.keeps_open = False  # RFC 9112, 6.1: what follows may be of somebody else's making
        self._body = body_of(status, headers)
        if "content-encoding" in headers and status not in WITHOUT_BODY:
            self._decode(headers["content-encoding"])

    def _decode(self, encoding: str) -> None:
        try:
            self._decoder = decoder_for(encoding)
        except BadContent as error:
            raise ProtocolError(str(error)) from error
        self.limit(self._most)  # all that one packet stands for is unpacked at once

    def _decoded(self, body: bytes) -> bytes:
        assert self._decoder is not None
        try:
            return self._decoder.feed(body, self._most - self._size)
        except BadContent as error:
            raise ProtocolError(str(error)) from error

    def _too_large(self) -> ResponseTooLarge:
        return ResponseTooLarge(f"its body has more than {declared_size(self._most)}")


def _fields(lines: list[str]) -> dict[str, str]:
    """Headers that come several times are joined, as RFC 9110 has it; folded ones are unfolded."""
    if len(lines) > _MOST_FIELDS:
        raise ProtocolError(f"its head has {len(lines)} lines, more than {_MOST_FIELDS}")
    headers: dict[str, str] = {}
    last = ""
    for line in lines:
        name, value = _field(line) if len(line) < _LONGEST_KEPT else _field.__wrapped__(line)
        if name in headers:
            headers[name] += f", {value}"
        elif name:
            headers[name] = value
        elif last:
            headers[last] += f" {value}"
            continue
        else:
            raise ProtocolError(f"its head has the line {line[:40]!r}")
        last = name
    return headers


# Servers say nearly the same each time: what a line is found to be is kept.
@lru_cache(maxsize=64)
def _status(line: str) -> tuple[str, int]:
    """The minor version and the status of a first line. Raises BadAnswer."""
    found = _FIRST_LINE.fullmatch(line)
    if found is None:
        raise ProtocolError(f"it begins with {line[:40]!r}")
    return found[1], int(found[2])


@lru_cache(maxsize=1024)
def _field(line: str) -> tuple[str, str]:
    """The name of a header in small letters, and its value; no name for a line that goes on with the one before it.
    Raises BadAnswer."""
    name, colon, value = line.partition(":")
    if "\r" in line or "\n" in line or "\0" in line:
        raise ProtocolError("its head has a line end or a NUL inside of a line")
    if line[:1] in (" ", "\t"):
        return "", line.strip(" \t")
    if not (colon and _TOKEN.fullmatch(name)):
        raise ProtocolError(f"its head has the line {line[:40]!r}")
    return name.lower(), value.strip(" \t")
