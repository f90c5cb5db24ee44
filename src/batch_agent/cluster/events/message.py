"""What workers tell each other of what happens: a line about the message, then one for each event."""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from ...core.events import AgentStarted, Event
from ...core.fast_dataclass import dataclass
from ...observe.event_codec import PARSE_ERRORS, event_line, read_line

Happened = tuple[float, Event]
"""When, in seconds since the epoch as its worker's clock has it, and what."""


@dataclass(frozen=True, slots=True)
class EventBatch:
    worker: str
    sent: float
    """By the worker's clock, as the times of its events."""
    ended: tuple[str, ...] = ()
    """Agents that came to their end there, of which all was told."""
    has: tuple[AgentStarted, ...] = ()
    """All that is under way there, for who was not there when it began."""
    is_listening: bool = False
    """The worker asks to be told what happens elsewhere, and what is under way there."""
    is_leaving: bool = False
    lines: bytes = b""

    def encode(self) -> bytes:
        has = [(each.key, each.index) for each in self.has]
        about = [self.worker, self.sent, self.ended, has, self.is_listening, self.is_leaving]
        return orjson.dumps(about, option=orjson.OPT_APPEND_NEWLINE) + self.lines

    @property
    def events(self) -> Iterator[Happened]:
        """Those that this version knows."""
        for line in self.lines.splitlines():
            try:
                yield read_line(line)
            except PARSE_ERRORS:
                continue


def encoded(happened: Sequence[Happened]) -> bytes:
    return b"".join(event_line(at, event) for at, event in happened)


def read(data: bytes) -> EventBatch | None:
    """None for what is no such message, or one that this version does not know."""
    about, _, lines = data.partition(b"\n")
    try:
        return _told(lines, *orjson.loads(about))
    except PARSE_ERRORS:
        return None


def _told(
    lines: bytes,
    worker: str,
    sent: float,
    ended: list[str],
    has: list[tuple[str, int]],
    is_listening: bool,
    is_leaving: bool,
    *_: Any,
) -> EventBatch:
    agents = tuple(AgentStarted(key, index) for key, index in has)
    return EventBatch(str(worker), float(sent), tuple(ended), agents, is_listening, is_leaving, lines)
