"""HTTP/1.1 answers from bytes. Knows no sockets: whoever has the bytes feeds them, in pieces of any size."""

import zlib
from collections.abc import Mapping
from typing import NamedTuple

_LONGEST_HEAD = 64 * 1024
_LONGEST_LINE = 1024
_WITHOUT_BODY = (204, 304)
_ANY_WINDOW = 47
"""For zlib: gzip or deflate, whatever the bytes show."""


class BadAnswer(Exception):
    """What came is no HTTP answer."""


class Head(NamedTuple):
    """What an answer begins with. The names of headers are in small letters."""

    status: int
    headers: Mapping[str, str]

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class AnswerReader:
    """One answer to one request. `feed` gives the part of the body that the bytes hold."""

    __slots__ = ("_body", "_buffer", "_unzip", "head", "is_whole", "keeps_open")

    def __init__(self) -> None:
        self.head: Head | None = None
        self.is_whole = False
        self.keeps_open = True
        """Whether the connection can carry another answer after this one."""
        self._buffer = b""
        self._body: _Sized | _Chunked | _Open | None = None
        self._unzip: zlib._Decompress | None = None

    def feed(self, data: bytes) -> bytes:
        """Raises BadAnswer."""
        if self._body is None:
            data = self._begin(data)
            if self._body is None:
                return b""
        body = self._body.feed(data)
        if self._body.is_over:
            self.is_whole = True
            self.keeps_open = self.keeps_open and not self._body.has_more
        return body if self._unzip is None else self._unzipped(body)

    def end(self) -> None:
        """No more bytes come. Raises BadAnswer for an answer that is not whole."""
        self.keeps_open = False
        if not isinstance(self._body, _Open):
            raise BadAnswer("the answer broke off before its end")
        self.is_whole = True

    def _begin(self, data: bytes) -> bytes:
        """Reads the head; what follows it of the bytes."""
        data = self._buffer + data if self._buffer else data
        while self._body is None:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > _LONGEST_HEAD:
                    raise BadAnswer("its head has no end")
                self._buffer = data
                return b""
            head, data = data[:end], data[end + 4 :]
            self._take(head)
        self._buffer = b""
        return data

    def _take(self, text: bytes) -> None:
        first, *lines = text.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        status = rest[:3]
        if not (version.startswith("HTTP/1.") and len(status) == 3 and status.isdecimal()):
            raise BadAnswer(f"it begins with {first[:40]!r}")
        if status[0] == "1":  # the answer itself is still to come
            return
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise BadAnswer(f"its head has the line {line[:40]!r}")
            headers[name.lower()] = value.strip()
        self.head = Head(int(status), headers)
        connection = headers.get("connection", "").lower()
        self.keeps_open = "close" not in connection and (version != "HTTP/1.0" or "keep-alive" in connection)
        if headers.get("content-encoding", "identity").lower() not in ("identity", ""):
            self._unzip = zlib.decompressobj(wbits=_ANY_WINDOW)
        self._body = _body_of(self.head)

    def _unzipped(self, body: bytes) -> bytes:
        assert self._unzip is not None
        try:
            return self._unzip.decompress(body)
        except zlib.error as error:
            raise BadAnswer(f"its body cannot be unpacked: {error}") from error


def _body_of(head: Head) -> "_Sized | _Chunked | _Open":
    if head.status in _WITHOUT_BODY:
        return _Sized(0)
    if "chunked" in head.headers.get("transfer-encoding", "").lower():
        return _Chunked()
    length = head.headers.get("content-length")
    if length is None:
        return _Open()
    if not (length.isascii() and length.isdecimal()):
        raise BadAnswer(f"its length is {length[:40]!r}")
    return _Sized(int(length))


class _Sized:
    """So many bytes."""

    __slots__ = ("_left", "has_more")

    def __init__(self, length: int) -> None:
        self._left = length
        self.has_more = False

    @property
    def is_over(self) -> bool:
        return not self._left

    def feed(self, data: bytes) -> bytes:
        if len(data) > self._left:
            self.has_more = True
            data = data[: self._left]
        self._left -= len(data)
        return data


class _Open:
    """All until the connection is closed."""

    __slots__ = ()
    is_over = False
    has_more = False

    def feed(self, data: bytes) -> bytes:
        return data


class _Chunked:
    """Chunks with their sizes before them, the last one of size 0; trailers after it are passed over."""

    __slots__ = ("_buffer", "_left", "_trails", "has_more", "is_over")

    def __init__(self) -> None:
        self._buffer = b""
        self._left = 0
        """Of the chunk under way, with the line end behind it."""
        self._trails = False
        self.is_over = False
        self.has_more = False

    def feed(self, data: bytes) -> bytes:
        data = self._buffer + data if self._buffer else data
        parts: list[bytes] = []
        at = 0
        while not self.is_over and at < len(data):
            if self._left:
                at = self._take_chunk(data, at, parts)
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            self._take_line(data[at:end])
            at = end + 2
        self._buffer = data[at:]
        self.has_more = self.is_over and bool(self._buffer)
        if not self._left and len(self._buffer) > _LONGEST_LINE and not self.is_over:
            raise BadAnswer("the size of a chunk has no end")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _take_chunk(self, data: bytes, at: int, parts: list[bytes]) -> int:
        size = min(self._left, len(data) - at)
        text = min(size, self._left - 2)
        if text > 0:
            parts.append(data[at : at + text])
        self._left -= size
        return at + size

    def _take_line(self, line: bytes) -> None:
        if self._trails:
            self.is_over = not line
            return
        size = line.partition(b";")[0].strip()
        try:
            length = int(size, 16) if size[:1].isalnum() else -1
        except ValueError:
            length = -1
        if length < 0:
            raise BadAnswer(f"the size of a chunk is {line[:40]!r}")
        self._trails = length == 0
        self._left = length + 2 if length else 0
