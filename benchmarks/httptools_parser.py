"""HTTP/1.1 response parser on httptools (llhttp), with the interface of `backends.http.h1_parser.ResponseParser`.

Kept for benchmarks/response_parsers.py: it is the alternative that ADR 23 compares.
"""

from collections.abc import Callable

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from batch_agent.backends.http.h1_parser import ProtocolError, ResponseHead, ResponseTooLarge
from batch_agent.backends.http.transport import MAX_BODY_BYTES, MAX_STREAM_BYTES, format_size
from batch_agent.content_decoder import BadContent, ContentDecoder, decoder_for

_LONGEST_HEAD = 64 * 1024
_MOST_FIELDS = 256
_MOST_INTERIM = 16
_LONGEST_LINE = 1024
_WITHOUT_BODY = (204, 304)


class AnswerReader:
    """Parser for one response. httptools calls the `on_` methods."""

    __slots__ = (
        "_decoder",
        "_fed",
        "_headers",
        "_interim",
        "_is_until_close",
        "_left",
        "_most",
        "_parser",
        "_parts",
        "_size",
        "head",
        "is_complete",
        "keep_alive",
        "on_body",
    )

    def __init__(self, most: int = MAX_STREAM_BYTES) -> None:
        """`most`: the limit of the decoded body in bytes."""
        self.head: ResponseHead | None = None
        self.is_complete = False
        self.keep_alive = True
        self._most = most
        self._size = self._fed = self._interim = self._left = 0
        self._is_until_close = False
        self._headers: dict[str, str] = {}
        self._decoder: ContentDecoder | None = None
        self._parts: list[bytes] = []
        self.on_body: Callable[[bytes], None] = self._parts.append
        self._parser = HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(lenient_chunked_length=True, lenient_spaces_after_chunk_size=True)

    def set_limit(self, most: int) -> None:
        """Sets the limit of a body that has begun. Raises AnswerTooLarge if it is known to exceed it."""
        self._most = most if self._decoder is None else min(most, MAX_BODY_BYTES)
        if self._size + (0 if self._decoder is not None else self._left) > self._most:
            raise self._too_large()

    def feed(self, data: bytes) -> bytes:
        """Raises BadAnswer."""
        if self.head is None:
            self._fed += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as error:
            raise ProtocolError("it switches protocols") from error
        except HttpParserError as error:
            if not self.is_complete:
                raise (
                    error.__context__ if isinstance(error.__context__, ProtocolError) else ProtocolError(str(error))
                ) from None
            self.keep_alive = False  # bytes after the end
        if self.head is None and self._fed > _LONGEST_HEAD:
            raise ProtocolError(f"its head has more than {format_size(_LONGEST_HEAD)}")
        return self._take_body()

    def end(self) -> None:
        """The connection is closed. Raises BadAnswer for a response that is not complete."""
        self.keep_alive = False
        if not self._is_until_close:
            raise ProtocolError("the answer broke off before its end")
        self._finish()

    def on_message_begin(self) -> None:
        if self.is_complete:
            self.keep_alive = False

    def on_status(self, reason: bytes) -> None:
        if b"\0" in reason:
            raise ProtocolError("its first line has a NUL")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.is_complete:
            return
        if self.head is not None:  # a trailer
            self._fed += len(name) + len(value) + 4
            if self._fed > 2 * _LONGEST_HEAD or len(name) + len(value) > _LONGEST_LINE:
                raise ProtocolError("its trailers have no end")
            return
        key, text = name.decode("latin-1").lower(), value.decode("latin-1").strip(" \t")
        headers = self._headers
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
        if len(headers) > _MOST_FIELDS:
            raise ProtocolError(f"its head has more than {_MOST_FIELDS} lines")

    def on_headers_complete(self) -> None:
        if self.is_complete:
            return
        status = self._parser.get_status_code()
        if not 100 <= status < 1000:
            raise ProtocolError(f"its status is {status}")
        headers = self._headers
        if status < 200:
            self._interim += 1
            self._headers = {}
            if status == 101 or self._interim > _MOST_INTERIM:
                raise ProtocolError(f"it answers with {status}, which nobody asked for")
            return
        if self._fed > _LONGEST_HEAD and sum(len(name) + len(headers[name]) for name in headers) > _LONGEST_HEAD:
            raise ProtocolError(f"its head has more than {format_size(_LONGEST_HEAD)}")
        self.head = ResponseHead(status, headers)
        self._frame(status, headers)
        if "content-encoding" in headers and status not in _WITHOUT_BODY:
            self._decode(headers["content-encoding"])

    def on_message_complete(self) -> None:
        if self.head is not None and not self.is_complete:
            self._left = 0
            self.is_complete = True

    def _frame(self, status: int, headers: dict[str, str]) -> None:
        coding, length = headers.get("transfer-encoding"), headers.get("content-length")
        is_old = self._parser.get_http_version() == "1.0"
        connection = headers.get("connection", "").lower()
        self.keep_alive = "close" not in connection and (not is_old or "keep-alive" in connection)
        if coding is not None:
            self.keep_alive = self.keep_alive and length is None and not is_old
            if coding.lower() != "chunked" and status not in _WITHOUT_BODY:
                raise ProtocolError(f"its Transfer-Encoding is {coding[:40]!r}, and only chunked is known")
        elif length is not None:
            self._left = int(length)
        else:
            self._is_until_close = status not in _WITHOUT_BODY

    def _take_body(self) -> bytes:
        parts = self._parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        if self._left:
            self._left -= len(body)
        if self._decoder is not None:
            body = self._decoded(body)
        self._size += len(body)
        if self._size > self._most:
            raise self._too_large()
        if self.is_complete:
            self._finish()
        return body

    def _finish(self) -> None:
        if self._decoder is not None:
            try:
                self._decoder.close()
            except BadContent as error:
                raise ProtocolError(str(error)) from error
        self.is_complete = True

    def _decode(self, encoding: str) -> None:
        try:
            self._decoder = decoder_for(encoding)
        except BadContent as error:
            raise ProtocolError(str(error)) from error
        self.set_limit(self._most)

    def _decoded(self, body: bytes) -> bytes:
        assert self._decoder is not None
        try:
            return self._decoder.feed(body, self._most - self._size)
        except BadContent as error:
            raise ProtocolError(str(error)) from error

    def _too_large(self) -> ResponseTooLarge:
        return ResponseTooLarge(f"its body has more than {format_size(self._most)}")
