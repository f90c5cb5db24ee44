"""Messages by which a worker publishes its events to the other processes: a header line, then one line per event."""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from ...core.events import AgentStarted, Event
from ...core.fast_dataclass import dataclass
from ...observe.event_codec import PARSE_ERRORS, event_line, read_line, rounded

TimedEvent = tuple[float, Event]
"""An event with its time, in seconds since the epoch by the worker's clock."""


@dataclass(frozen=True, slots=True)
class EventBatch:
    """One message of a worker."""

    worker: str
    sent: float
    """Time of the message by the worker's clock, which also gives the times of its events."""
    ended: tuple[str, ...] = ()
    """Agents that ended at the worker and whose events have all been sent."""
    has: tuple[AgentStarted, ...] = ()
    """All running agents of the worker, for processes that did not listen when the agents started."""
    is_listening: bool = False
    """Whether the worker asks the others for their events and running agents."""
    is_leaving: bool = False
    is_announcement: bool = False
    """Whether the worker knows of no listener."""
    lines: bytes = b""

    def encode(self) -> bytes:
        has = [(each.key, each.index) for each in self.has]
        header = [self.worker, self.sent, self.ended, has, self.is_listening, self.is_leaving, self.is_announcement]
        return orjson.dumps(header, option=orjson.OPT_APPEND_NEWLINE) + self.lines

    @property
    def events(self) -> Iterator[TimedEvent]:
        """The events, without kinds that this version does not know."""
        for line in self.lines.splitlines():
            try:
                yield read_line(line)
            except PARSE_ERRORS:
                continue


def encode_events(events: Sequence[TimedEvent]) -> bytes:
    return b"".join(event_line(rounded(at), event) for at, event in events)


def read(data: bytes) -> EventBatch | None:
    """Returns None for other messages and for formats that this version does not know."""
    header, _, lines = data.partition(b"\n")
    try:
        return _batch(lines, *orjson.loads(header))
    except PARSE_ERRORS:
        return None


def _batch(
    lines: bytes,
    worker: str,
    sent: float,
    ended: list[str],
    has: list[tuple[str, int]],
    is_listening: bool,
    is_leaving: bool,
    is_announcement: bool = False,
    *_: Any,
) -> EventBatch:
    agents = tuple(AgentStarted(key, index) for key, index in has)
    return EventBatch(str(worker), float(sent), tuple(ended), agents, is_listening, is_leaving, is_announcement, lines)
