"""The body of an HTTP/1.1 answer: where it ends, by its length, its chunks or the end of the connection."""

import re
from collections.abc import Mapping
from functools import lru_cache

WITHOUT_BODY = (204, 304)
_LONGEST_NUMBER = 18
"""Digits of a Content-Length."""
_LONGEST_LINE = 1024
_LONGEST_TRAILERS = 64 * 1024
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?", re.DOTALL)


class BadAnswer(Exception):
    """What came is no HTTP answer."""


class AnswerTooLarge(BadAnswer):
    """The body has more bytes than are read of one."""


def body_of(status: int, headers: Mapping[str, str]) -> "Body":
    """The framing that the head of an answer announces. Raises BadAnswer."""
    if status in WITHOUT_BODY:
        return Sized(0)
    coding = headers.get("transfer-encoding")
    if coding is not None:
        if coding.lower() != "chunked":
            raise BadAnswer(f"its Transfer-Encoding is {coding[:40]!r}, and only chunked is known")
        return Chunked()
    length = headers.get("content-length")
    return Open() if length is None else Sized(_length(length))


def _length(said: str) -> int:
    """The same length may be said several times. Raises BadAnswer for different ones."""
    if len(said) <= _LONGEST_NUMBER and said.isascii() and said.isdecimal():
        return int(said)
    first, *others = {part.strip(" \t") for part in said.split(",")}
    if others:
        raise BadAnswer(f"it has several lengths: {said[:40]!r}")
    if not (first.isascii() and first.isdecimal()):
        raise BadAnswer(f"its length is {first[:40]!r}")
    if len(first) > _LONGEST_NUMBER:
        raise AnswerTooLarge(f"its length is a number of {len(first)} digits")
    return int(first)


@lru_cache(maxsize=1024)
def _chunk_size(line: bytes) -> int:
    found = _CHUNK_SIZE.fullmatch(line)
    if found is None or b"\n" in line or b"\r" in line or len(line) > _LONGEST_LINE:
        raise BadAnswer(f"the size of a chunk is {line[:40]!r}")
    return int(found[1], 16)


class Sized:
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


class Open:
    """All until the connection is closed."""

    __slots__ = ()
    is_over = False
    has_more = False

    def feed(self, data: bytes) -> bytes:
        return data


class Chunked:
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
                    raise BadAnswer("a chunk is longer than its size")
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
            raise BadAnswer("a chunk is longer than its size")
        if b"\n" in self._buffer or len(self._buffer) > _LONGEST_LINE:
            raise BadAnswer(f"the size of a chunk has no end: {self._buffer[:40]!r}")

    def _take_line(self, line: bytes) -> None:
        if self._trailers is not None:
            self._trailers += len(line) + 2
            if self._trailers > _LONGEST_TRAILERS or len(line) > _LONGEST_LINE or b"\n" in line or b"\r" in line:
                raise BadAnswer(f"its trailers have no end, or the line {line[:40]!r}")
            self.is_over = not line
            return
        self._left = _chunk_size(line)
        if not self._left:
            self._trailers = 0


Body = Sized | Chunked | Open
