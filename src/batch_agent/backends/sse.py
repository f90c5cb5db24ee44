"""Server-sent events, byte by byte: the same events for any chunking."""

import re
from collections.abc import Iterator

from ..core.quick import dataclass

_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class SseEvent:
    data: bytes
    name: bytes = b""


class SseParser:
    """Feed it bytes, iterate over what is complete. Comments and unknown fields are passed over."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._holds_cr = False
        self._data: list[bytes] = []
        self._name = b""

    def feed(self, chunk: bytes) -> Iterator[SseEvent]:
        self._rest.append(chunk)
        if not self._holds_cr and b"\n" not in chunk and b"\r" not in chunk:
            return  # a long line in many pieces is joined once, not for each of them
        text = b"".join(self._rest)
        if b"\r" in text:
            yield from self._any_lines(text)
            return
        *lines, rest = text.split(b"\n")
        self._rest = [rest] if rest else []
        for line in lines:
            event = self._line(line)
            if event is not None:
                yield event

    def _any_lines(self, text: bytes) -> Iterator[SseEvent]:
        """Lines that end in any of three ways."""
        # A CR at the very end may be the first half of a CRLF: it waits for the next byte.
        self._holds_cr = text.endswith(b"\r")
        limit = len(text) - self._holds_cr
        start = 0
        for end in _LINE_END.finditer(text, 0, limit):
            event = self._line(text[start : end.start()])
            start = end.end()
            if event is not None:
                yield event
        self._rest = [text[start:]]

    def _line(self, line: bytes) -> SseEvent | None:
        if not line:
            if not self._data:
                self._name = b""
                return None
            event = SseEvent(b"\n".join(self._data), self._name)
            self._data.clear()
            self._name = b""
            return event
        if line.startswith(b"data: "):  # nearly all of them
            self._data.append(line[6:])
            return None
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value
        return None
