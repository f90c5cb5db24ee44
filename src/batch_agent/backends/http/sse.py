"""Incremental parser for server-sent events. The chunking of the bytes does not change the events."""

import re
from collections.abc import Iterable, Iterator

from ...core.errors import BackendError, ErrorKind
from .transport import format_size

SseEvent = tuple[bytes, bytes]
"""Data and name of an event. Nearly all events have no name."""

MAX_EVENT_BYTES = 32 * 2**20
"""Limit of one event. The arguments of a tool call that writes a file may have some megabytes."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\n|\r")


class SseParser:
    """Parser for one stream: `feed` returns the events that are complete. As the standard requires, comments, unknown
    fields and an event without a final blank line are ignored."""

    def __init__(self) -> None:
        self._has_started = False
        self._pending_bytes = 0
        """Bytes since the last blank line, without the rest of the chunk that contained it."""
        self._rest: list[bytes] = []
        self._skip_newline = False
        """Whether the last chunk ended in CR. An LF that follows belongs to the same line end."""
        self._data: list[bytes] = []
        self._name = b""

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Returns the events that `chunk` completes. Raises BackendError for an event that exceeds the limit."""
        if not self._has_started:
            chunk = self._skip_byte_order_mark(chunk)
        if self._skip_newline and chunk:
            self._skip_newline = False
            chunk = chunk.removeprefix(b"\n")
        if self._pending_bytes > MAX_EVENT_BYTES:
            raise BackendError(
                ErrorKind.SERVER,
                f"The stream contains an event larger than {format_size(MAX_EVENT_BYTES)}; the rest was not read.",
            )
        self._pending_bytes += len(chunk)
        self._rest.append(chunk)
        if b"\n" not in chunk and b"\r" not in chunk:
            return []  # a long line in many chunks is joined once, not for each of them
        text = b"".join(self._rest)
        if b"\r" in text:
            return self._events(self._split_lines(text))
        if not self._data and not self._name and text.startswith(b"data: "):
            complete, _, rest = text.rpartition(b"\n\n")
            events = complete[6:].split(b"\n\ndata: ")
            if complete and complete.count(b"\n") == 2 * (len(events) - 1):  # data lines and blank lines alternate
                self._rest = [rest] if rest else []
                self._pending_bytes = 0
                return [(data, b"") for data in events]
        *lines, rest = text.split(b"\n")
        self._rest = [rest] if rest else []
        return self._events(lines)

    def _skip_byte_order_mark(self, chunk: bytes) -> bytes:
        """The first bytes of the stream without a byte order mark, which may span chunks."""
        self._rest.append(chunk)
        chunk = b"".join(self._rest)
        self._rest.clear()
        if len(chunk) < len(_BYTE_ORDER_MARK) and _BYTE_ORDER_MARK.startswith(chunk):
            self._rest.append(chunk)
            return b""
        self._has_started = True
        return chunk.removeprefix(_BYTE_ORDER_MARK)

    def _split_lines(self, text: bytes) -> Iterator[bytes]:
        """Lines that end in CRLF, LF or CR."""
        self._skip_newline = text.endswith(b"\r")
        start = 0
        for end in _LINE_END.finditer(text):
            yield text[start : end.start()]
            start = end.end()
        self._rest = [text[start:]]

    def _events(self, lines: Iterable[bytes]) -> list[SseEvent]:
        events: list[SseEvent] = []
        for line in lines:
            if line.startswith(b"data: "):  # nearly all lines
                self._data.append(line[6:])
            elif line:
                self._field(line)
            else:
                if self._data:
                    events.append((b"\n".join(self._data), self._name))
                    self._data.clear()
                self._name = b""
                self._pending_bytes = 0
        return events

    def _field(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value
