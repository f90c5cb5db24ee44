"""Fast path for the chunks of a stream that differ only in their text."""

from collections.abc import Callable

import orjson

from ....core.requests import ReasoningDelta, TextDelta

ChunkText = tuple[type[TextDelta | ReasoningDelta], str]

_MAX_LEARNED = 10
"""Attempts per stream to learn the shape of a chunk. Servers that vary every chunk never match."""


class ChunkFastPath:
    """Parses only the text of a chunk whose surrounding JSON is known, which is a fraction of the work. The result is
    the same: replacing one string in JSON changes nothing else."""

    def __init__(self, read: Callable[[bytes], ChunkText | None]) -> None:
        """`read`: the text of a chunk; None for a chunk without text, or with anything besides text."""
        self.kind: type[TextDelta | ReasoningDelta] = TextDelta
        self._read = read
        self._before = self._after = b"\n"  # never part of single-line JSON
        self._start = self._end = 0
        self._attempts_left = _MAX_LEARNED

    def text(self, data: bytes) -> str:
        """The text of a chunk of the known shape, for a delta of `kind`. Empty for a chunk that must be parsed in
        full."""
        if not (data.startswith(self._before) and data.endswith(self._after)):
            return ""
        try:
            text = orjson.loads(data[self._start : self._end])
        except orjson.JSONDecodeError:
            return ""
        return text if isinstance(text, str) else ""

    def learn(self, data: bytes) -> None:
        """Remembers the shape of a chunk that contains only text."""
        if not self._attempts_left:
            return
        self._attempts_left -= 1
        parsed = self._read(data)
        if parsed is None:
            return
        kind, text = parsed
        before, _, after = data.partition(orjson.dumps(text))
        changed = f"{text}?"
        if self._read(before + orjson.dumps(changed) + after) != (kind, changed):
            return  # the text occurs elsewhere too, or is escaped differently
        self.kind, self._before, self._after = kind, before, after
        self._start, self._end = len(before), -len(after)
