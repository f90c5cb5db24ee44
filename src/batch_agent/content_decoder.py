"""Incremental decoder for gzip and deflate bodies, with a limit on the decoded size."""

import zlib

_ANY_WINDOW = 47
"""zlib window bits that detect a gzip or a zlib header."""
_KNOWN = ("gzip", "x-gzip", "deflate")


class BadContent(ValueError):
    """Raised for a body that does not match its Content-Encoding."""


class ContentDecoder:
    """Decoder of one body, fed in pieces of any size. A few bytes may decode to gigabytes, so each call has a limit."""

    __slots__ = ("_decoder", "_encoding", "_is_empty")

    def __init__(self, encoding: str) -> None:
        """Raises BadContent for any other encoding than gzip and deflate."""
        if encoding not in _KNOWN:
            raise BadContent(f"its Content-Encoding is {encoding[:40]!r}, and only gzip and deflate can be decoded")
        self._encoding = encoding
        self._decoder = zlib.decompressobj(wbits=_ANY_WINDOW)
        self._is_empty = True

    def feed(self, data: bytes, max_bytes: int) -> bytes:
        """The decoded bytes. If more than `max_bytes` are returned, the limit is exceeded: the rest is not decoded, and
        the decoder cannot be fed again. Raises BadContent."""
        if not data:
            return b""
        self._is_empty = False
        try:
            content = self._decoder.decompress(data, max(max_bytes, 0) + 1)
        except zlib.error as error:
            raise BadContent(f"its body is not valid {self._encoding}: {error}") from error
        if self._decoder.unused_data:
            raise BadContent(f"its body goes on after the end of its {self._encoding} data")
        return content

    def close(self) -> None:
        """Ends the body. Raises BadContent if it was truncated; an empty body is valid."""
        if not self._decoder.eof and not self._is_empty:
            raise BadContent(f"its {self._encoding} data broke off before its end")


def decoder_for(encoding: str | None) -> ContentDecoder | None:
    """Decoder for a Content-Encoding header; None if there is nothing to decode. Raises BadContent."""
    name = (encoding or "").strip().lower()
    return None if name in ("", "identity") else ContentDecoder(name)
