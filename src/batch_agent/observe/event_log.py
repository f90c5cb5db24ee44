"""The events of a run in a file, one on each line: what the report and the live page are made from.

What the agents read and said is not in it: that is in the checkpoint."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from ..core.errors import StoreError
from ..core.events import Event
from .event_codec import UNREADABLE, line, read_event, rounded

FILE = "events.jsonl"
_FORMAT = 1
_OPENED, _CLOSED = "Opened", "Closed"


def opened_line(at: float) -> bytes:
    """The first of each process that writes to the file."""
    return line([at, _OPENED, "", _FORMAT])


def closed_line(at: float, opened: float) -> bytes:
    """The last, of one that came to an end by itself. `opened`: when it began; another may have begun since."""
    return line([at, _CLOSED, "", rounded(opened)])


class LogReader:
    """Reads what there is, and then what has come since. Times are seconds from the beginning of the first process;
    the time between two processes counts for nothing, and a clock that is set back stands still for a moment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / FILE
        self._head = b""
        self._position = 0
        self._offset = 0.0
        self._last = 0.0
        self._opened: float | None = None
        self.began: float | None = None
        """Of the first process, in seconds since the epoch."""
        self.processes: list[float] = []
        """When each began."""
        self.is_closed = False
        """Whether the last process came to its end; one that was killed did not."""

    @property
    def seconds(self) -> float:
        """When the last event was."""
        return self._last

    def is_replaced(self) -> bool:
        """Whether the file is another one than that which was read. Raises FileNotFoundError where there is none."""
        with self._path.open("rb") as file:
            return file.read(len(self._head)) != self._head

    def read(self) -> Iterator[tuple[float, Event]]:
        """What is new. A line that is not whole yet is left for the next time; one that cannot be read is passed over.
        Raises FileNotFoundError where there is no log, and StoreError for one of a newer version."""
        with self._path.open("rb") as file:
            file.seek(self._position)
            for each in file:
                if not each.endswith(b"\n"):
                    break
                if not self._position:
                    self._head = each
                try:
                    event = self._event(*orjson.loads(each))
                except UNREADABLE:
                    event = None
                self._position += len(each)
                if event is not None:
                    yield self._last, event

    def _event(self, at: float, kind: str, stage: str, *parts: Any) -> Event | None:
        """None for what is no event. Raises StoreError, and one of UNREADABLE."""
        if kind in (_OPENED, _CLOSED):
            self._turns(kind, at, *parts)
            return None
        event = read_event(kind, stage, parts)
        self._tick(at)
        return event

    def _tick(self, at: float) -> None:
        since = at - self._offset
        if since >= self._last:
            self._last = since
        else:
            self._offset = at - self._last

    def _turns(self, kind: str, at: float, *parts: Any) -> None:
        if kind == _CLOSED:
            self._tick(at)
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
