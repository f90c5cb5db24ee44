"""Follower of an event log, which another process may still be writing."""

import time
from itertools import islice
from pathlib import Path
from typing import Any

from ...core.errors import StoreError
from ..event_log import FILE, LogReader
from .lock_probe import is_held
from .page_model import model_of, with_evaluation
from .run_view import RunView

_BATCH_SIZE = 50_000
"""Events per poll."""
_FRESH = 3.0
"""Seconds since the last line. An active run samples its load about once per second."""
_STALE = 15.0
"""Like _FRESH, if the lock cannot tell whether the run is active."""


class LogFollower:
    """Reads the event log of a run incrementally, and builds the model of its page. Blocks on disk access."""

    def __init__(self, folder: Path, *, fresh: float = _FRESH) -> None:
        """`fresh`: seconds after the last line during which an unclosed log counts as active."""
        self._folder = folder.absolute()
        self._fresh = fresh
        self._died_at: float | None = None
        self._reader = LogReader(self._folder)
        self._view = RunView()
        self._state: object = None
        self.version = 0
        """Increases whenever the model changes."""

    @property
    def has_log(self) -> bool:
        return self._reader.began is not None

    @property
    def is_running(self) -> bool:
        """Whether a process is active: it has not closed the log, and it either wrote recently or holds the lock."""
        if not self.has_log or self._reader.is_closed:
            return False
        try:
            written = (self._folder / FILE).stat().st_mtime
        except FileNotFoundError:
            return False
        age = time.time() - written
        if age < self._fresh:
            return True
        if written == self._died_at:
            return False  # a process that resumes the run would have written to it
        held = is_held(self._folder)
        if held is False:
            self._died_at = written
        return age < _STALE if held is None else held

    def poll(self) -> bool:
        """Reads a batch of new events, and returns whether there may be more. Raises OSError and StoreError."""
        read = 0
        try:
            if self._reader.is_replaced():
                self._reset()
            view, processes = self._view, self._reader.processes
            for at, event in islice(self._reader.read(), _BATCH_SIZE):
                if len(processes) > len(view.processes):
                    self._note_processes()
                view.take(at, event)
                read += 1
            self._note_processes()
        except FileNotFoundError:
            if self.has_log:
                self._reset()
        state = (self._reader.seconds, len(self._reader.processes), self._reader.is_closed, self.is_running)
        if read or state != self._state:
            self._state = state
            self.version += 1
        return read == _BATCH_SIZE

    def read_all(self) -> None:
        """Reads the whole log. Raises OSError and StoreError, also if there is no log."""
        while self.poll():
            pass
        if not self.has_log:
            raise StoreError(
                f"{str(self._folder)!r} has no event log ({FILE}). A run with a checkpoint writes it from its first "
                "agent on."
            )

    def key(self, stage: str, index: int, sample: int = 0) -> str | None:
        """The key of an agent, by stage, index and sample."""
        return self._view.key(stage, index, sample)

    def model(self) -> dict[str, Any]:
        """The model of the page."""
        found = model_of(
            self._view,
            title=self._folder.name,
            began=self._reader.began,
            now=time.time(),
            is_running=self.is_running,
            is_closed=self._reader.is_closed,
        )
        found = with_evaluation(found, self._view, self._folder)
        return found if self.has_log else {**found, "state": "waiting"}

    def _note_processes(self) -> None:
        for began in self._reader.processes[len(self._view.processes) :]:
            self._view.start_process(began)

    def _reset(self) -> None:
        """Starts over: the log was deleted or replaced."""
        self._reader, self._view = LogReader(self._folder), RunView()
