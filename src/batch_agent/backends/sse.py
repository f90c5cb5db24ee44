"""Server-sent events, byte by byte: the same events for any chunking."""

import re
from collections.abc import Iterable, Iterator

SseEvent = tuple[bytes, bytes]
"""The data of an event, and its name, which nearly all of them lack."""

_LINE_END = re.compile(rb"\r\n|\n|\r")


class SseParser:
    """Feed it bytes, take what is complete. Comments and unknown fields are passed over."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._holds_cr = False
        self._data: list[bytes] = []
        self._name = b""

    def feed(self, chunk: bytes) -> list[SseEvent]:
        self._rest.append(chunk)
        if not self._holds_cr and b"\n" not in chunk and b"\r" not in chunk:
            return []  # a long line in many pieces is joined once, not for each of them
        text = b"".join(self._rest)
        if b"\r" in text:
            return self._events(self._any_lines(text))
        if not self._data and not self._name and text.startswith(b"data: "):
            whole, _, rest = text.rpartition(b"\n\n")
            each = whole[6:].split(b"\n\ndata: ")
            if whole and whole.count(b"\n") == 2 * (len(each) - 1):  # lines of data and blank ones, in turns
                self._rest = [rest] if rest else []
                return [(data, b"") for data in each]
        *lines, rest = text.split(b"\n")
        self._rest = [rest] if rest else []
        return self._events(lines)

    def _any_lines(self, text: bytes) -> Iterator[bytes]:
        """Lines that end in any of three ways."""
        # A CR at the very end may be the first half of a CRLF: it waits for the next byte.
        self._holds_cr = text.endswith(b"\r")
        limit = len(text) - self._holds_cr
        start = 0
        for end in _LINE_END.finditer(text, 0, limit):
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
        return events

    def _field(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value
