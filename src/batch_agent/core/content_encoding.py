"""Incremental decoder for bodies in gzip or deflate, with a limit on what comes out."""

import zlib

_ANY_WINDOW = 47
"""For zlib: a gzip or a zlib header, whichever the bytes show."""
_KNOWN = ("gzip", "x-gzip", "deflate")


class BadContent(ValueError):
    """The body is not what its Content-Encoding says; the message says why."""


class ContentDecoder:
    """Decodes one body, fed in pieces of any size. A few bytes may stand for gigabytes, so each call has a limit."""

    __slots__ = ("_decoder", "_encoding", "_is_empty")

    def __init__(self, encoding: str) -> None:
        """Raises BadContent for any other encoding than gzip and deflate."""
        if encoding not in _KNOWN:
            raise BadContent(f"its Content-Encoding is {encoding[:40]!r}, and only gzip and deflate can be decoded")
        self._encoding = encoding
        self._decoder = zlib.decompressobj(wbits=_ANY_WINDOW)
        self._is_empty = True

    def feed(self, data: bytes, most: int) -> bytes:
        """What the bytes stand for. More than `most` bytes mean that there is more: the rest is not decoded, and
        nothing can be fed after that. Raises BadContent."""
        if not data:
            return b""
        self._is_empty = False
        try:
            content = self._decoder.decompress(data, max(most, 0) + 1)
        except zlib.error as error:
            raise BadContent(f"its body is not valid {self._encoding}: {error}") from error
        if self._decoder.unused_data:
            raise BadContent(f"its body goes on after the end of its {self._encoding} data")
        return content

    def close(self) -> None:
        """The body is complete. Raises BadContent for one that was cut off; an empty body is none."""
        if not self._decoder.eof and not self._is_empty:
            raise BadContent(f"its {self._encoding} data broke off before its end")


def decoder_for(encoding: str | None) -> ContentDecoder | None:
    """For the value of a Content-Encoding header; None where there is nothing to decode. Raises BadContent."""
    name = (encoding or "").strip().lower()
    return None if name in ("", "identity") else ContentDecoder(name)
