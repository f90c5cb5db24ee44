"""Chunks of a stream that differ in nothing but their text."""

from collections.abc import Callable

import orjson

from ....core.requests import ReasoningDelta, TextDelta

ChunkText = tuple[type[TextDelta | ReasoningDelta], str]

_MOST_LESSONS = 10
"""In one stream. From servers that put something new into every chunk there is nothing to be learned."""


class ChunkFastPath:
    """Reads the text alone, a fraction of the work, where the JSON around it is known. What is read is the same:
    another string in the place of a string changes nothing else."""

    def __init__(self, read: Callable[[bytes], ChunkText | None]) -> None:
        """`read`: what a chunk says; None for one that says nothing, or does more than that."""
        self.kind: type[TextDelta | ReasoningDelta] = TextDelta
        self._read = read
        self._before = self._after = b"\n"  # in no JSON of one line
        self._start = self._end = 0
        self._lessons_left = _MOST_LESSONS

    def text(self, data: bytes) -> str:
        """What a chunk of the known shape says, in a delta of `kind`. Nothing for one that has to be read in full."""
        if not (data.startswith(self._before) and data.endswith(self._after)):
            return ""
        try:
            text = orjson.loads(data[self._start : self._end])
        except orjson.JSONDecodeError:
            return ""
        return text if isinstance(text, str) else ""

    def learn(self, data: bytes) -> None:
        """Keeps the shape of a chunk if it is one around a text."""
        if not self._lessons_left:
            return
        self._lessons_left -= 1
        said = self._read(data)
        if said is None:
            return
        kind, text = said
        before, _, after = data.partition(orjson.dumps(text))
        other = f"{text}?"
        if self._read(before + orjson.dumps(other) + after) != (kind, other):
            return  # the same text is elsewhere too, or is written in another way
        self.kind, self._before, self._after = kind, before, after
        self._start, self._end = len(before), -len(after)
