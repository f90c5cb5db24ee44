"""Event log of a run: a file with one event per line, from which the report and the live page are built.

Conversations and tool results are in the checkpoint instead."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from ..core.errors import StoreError
from ..core.events import Event
from .event_codec import PARSE_ERRORS, line, read_event, rounded

FILE = "events.jsonl"
_FORMAT = 1
_OPENED, _CLOSED = "Opened", "Closed"


def opened_line(at: float) -> bytes:
    """First line of each process that writes to the file."""
    return line([at, _OPENED, "", _FORMAT])


def closed_line(at: float, opened: float) -> bytes:
    """Last line of a process that was not killed. `opened`: its start time; another process may have started since."""
    return line([at, _CLOSED, "", rounded(opened)])


class LogReader:
    """Incremental reader of an event log. Times are seconds from the start of the first process, without the gaps
    between processes. They never decrease, even if the clock is set back."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / FILE
        self._head = b""
        self._position = 0
        self._offset = 0.0
        self._last = 0.0
        self._opened: float | None = None
        self.began: float | None = None
        """Start of the first process, in seconds since the epoch."""
        self.processes: list[float] = []
        """Start times of the processes."""
        self.is_closed = False
        """Whether the last process closed the log. A killed process does not."""

    @property
    def seconds(self) -> float:
        """Time of the last event."""
        return self._last

    def is_replaced(self) -> bool:
        """Whether the file that was read has been replaced. Raises FileNotFoundError."""
        with self._path.open("rb") as file:
            return file.read(len(self._head)) != self._head

    def read(self) -> Iterator[tuple[float, Event]]:
        """New events. Leaves an incomplete line for the next call, and skips a line that cannot be parsed. Raises
        FileNotFoundError if there is no log, and StoreError for a log of a newer version."""
        with self._path.open("rb") as file:
            file.seek(self._position)
            for each in file:
                if not each.endswith(b"\n"):
                    break
                if not self._position:
                    self._head = each
                try:
                    event = self._event(*orjson.loads(each))
                except PARSE_ERRORS:
                    event = None
                self._position += len(each)
                if event is not None:
                    yield self._last, event

    def _event(self, at: float, kind: str, stage: str, *parts: Any) -> Event | None:
        """The event of a line; None if the line is not an event. Raises StoreError and PARSE_ERRORS."""
        if kind in (_OPENED, _CLOSED):
            self._process_boundary(kind, at, *parts)
            return None
        event = read_event(kind, stage, parts)
        self._advance(at)
        return event

    def _advance(self, at: float) -> None:
        since = at - self._offset
        if since >= self._last:
            self._last = since
        else:
            self._offset = at - self._last

    def _process_boundary(self, kind: str, at: float, *parts: Any) -> None:
        if kind == _CLOSED:
            self._advance(at)
            self.is_closed = not parts or parts[0] == self._opened
            return
        if parts[0] > _FORMAT:
            raise StoreError(
                f"The log in {str(self._folder)!r} was written by a newer version of batch-agent. Upgrade batch-agent."
            )
        if self.began is None:
            self.began = at
        self._opened, self.is_closed = at, False
        self._offset = at - self._last
        self.processes.append(self._last)
