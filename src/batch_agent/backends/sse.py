"""Server-sent events, byte by byte: the same events for any chunking."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

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
            event = SseEvent(b"\n".join(self._data), self._name) if self._data else None
            self._data, self._name = [], b""
            return event
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value
        return None
