"""Server-sent events, byte by byte: the same events for any chunking."""

import re
from collections.abc import Iterable, Iterator

from ...core.errors import BackendError, ErrorKind
from .transport import declared_size

SseEvent = tuple[bytes, bytes]
"""The data of an event, and its name, which nearly all of them lack."""

LARGEST_EVENT = 32 * 2**20
"""Bytes of one event. The arguments of a tool call that writes a file may have some megabytes."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\n|\r")


class SseParser:
    """Feed it bytes, take what is complete. Comments and unknown fields are passed over, and so is an event that the
    stream does not end with a blank line, as the standard has it."""

    def __init__(self) -> None:
        self._has_begun = False
        self._held = 0
        """Bytes that have come since the last blank line, but for those of the chunk that it came with."""
        self._rest: list[bytes] = []
        self._skips_newline = False
        """The last chunk ended in a CR. It ends a line; an LF that follows is its second half."""
        self._data: list[bytes] = []
        self._name = b""

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Raises BackendError for an event without an end."""
        if not self._has_begun:
            chunk = self._begin(chunk)
        if self._skips_newline and chunk:
            self._skips_newline = False
            chunk = chunk.removeprefix(b"\n")
        if self._held > LARGEST_EVENT:
            raise BackendError(
                ErrorKind.SERVER,
                f"The server's stream has an event of more than {declared_size(LARGEST_EVENT)}: the rest was not read.",
            )
        self._held += len(chunk)
        self._rest.append(chunk)
        if b"\n" not in chunk and b"\r" not in chunk:
            return []  # a long line in many pieces is joined once, not for each of them
        text = b"".join(self._rest)
        if b"\r" in text:
            return self._events(self._any_lines(text))
        if not self._data and not self._name and text.startswith(b"data: "):
            whole, _, rest = text.rpartition(b"\n\n")
            each = whole[6:].split(b"\n\ndata: ")
            if whole and whole.count(b"\n") == 2 * (len(each) - 1):  # lines of data and blank ones, in turns
                self._rest = [rest] if rest else []
                self._held = 0
                return [(data, b"") for data in each]
        *lines, rest = text.split(b"\n")
        self._rest = [rest] if rest else []
        return self._events(lines)

    def _begin(self, chunk: bytes) -> bytes:
        """The first bytes of the stream without a byte order mark, however they are cut."""
        self._rest.append(chunk)
        chunk = b"".join(self._rest)
        self._rest.clear()
        if len(chunk) < len(_BYTE_ORDER_MARK) and _BYTE_ORDER_MARK.startswith(chunk):
            self._rest.append(chunk)
            return b""
        self._has_begun = True
        return chunk.removeprefix(_BYTE_ORDER_MARK)

    def _any_lines(self, text: bytes) -> Iterator[bytes]:
        """Lines that end in any of three ways."""
        self._skips_newline = text.endswith(b"\r")
        start = 0
        for end in _LINE_END.finditer(text):
            yield text[start : end.start()]
            start = end.end()
        self._rest = [text[start:]]

    def _events(self, lines: Iterable[bytes]) -> list[SseEvent]:
        events: list[SseEvent] = []
        for line in lines:
            if line.startswith(b"data: "):  # nearly all of them
                self._data.append(line[6:])
            elif line:
                self._field(line)
            else:
                if self._data:
                    events.append((b"\n".join(self._data), self._name))
                    self._data.clear()
                self._name = b""
                self._held = 0
        return events

    def _field(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value
