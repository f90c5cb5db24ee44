"""A run's folder, and what is to be seen of it now."""

import time
from itertools import islice
from pathlib import Path
from typing import Any

from ...core.errors import StoreError
from ..event_log import FILE, LogReader
from .lock_probe import is_held
from .model import model_of
from .run_view import RunView

_AT_ONCE = 50_000
"""Events."""
_FRESH = 3.0
"""Seconds: a run that goes on writes how full it is about once in one."""
_STALE = 15.0
"""Where nobody can tell otherwise whether it goes on."""


class LogFollower:
    """Reads the log of a run that may go on in another process. Blocks for as long as a disk takes."""

    def __init__(self, folder: Path, *, fresh: float = _FRESH) -> None:
        """`fresh`: for so many seconds after the last line of its log, a run that has not ended goes on for sure."""
        self._folder = folder.absolute()
        self._fresh = fresh
        self._died_at: float | None = None
        self._reader = LogReader(self._folder)
        self._view = RunView()
        self._state: object = None
        self.version = 0
        """Another one whenever there is something else to see."""

    @property
    def has_log(self) -> bool:
        return self._reader.began is not None

    @property
    def is_running(self) -> bool:
        """Whether somebody works at it: the last process has not ended, and wrote a moment ago or holds the lock."""
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
            return False  # and who goes on with it writes to it first
        held = is_held(self._folder)
        if held is False:
            self._died_at = written
        return age < _STALE if held is None else held

    def look(self) -> bool:
        """Reads on, and returns whether there may be more: of a long log it does not read all at once. Raises OSError
        and StoreError."""
        read = 0
        try:
            if self._reader.is_replaced():
                self._begin_anew()
            view, processes = self._view, self._reader.processes
            for at, event in islice(self._reader.read(), _AT_ONCE):
                if len(processes) > len(view.processes):
                    self._note_processes()
                view.take(at, event)
                read += 1
            self._note_processes()
        except FileNotFoundError:
            if self.has_log:
                self._begin_anew()
        state = (self._reader.seconds, len(self._reader.processes), self._reader.is_closed, self.is_running)
        if read or state != self._state:
            self._state = state
            self.version += 1
        return read == _AT_ONCE

    def look_at_all(self) -> None:
        """Raises OSError, and StoreError also where there is no log."""
        while self.look():
            pass
        if not self.has_log:
            raise StoreError(
                f"There is no log of a run in {str(self._folder)!r}: it has no {FILE}. A run with a checkpoint writes "
                "it from its first agent on; runs of older versions did not."
            )

    def key(self, stage: str, index: int) -> str | None:
        """Of an agent."""
        return self._view.key(stage, index)

    def model(self) -> dict[str, Any]:
        """What the page shows."""
        found = model_of(
            self._view,
            title=self._folder.name,
            began=self._reader.began,
            now=time.time(),
            is_running=self.is_running,
            is_closed=self._reader.is_closed,
        )
        return found if self.has_log else {**found, "state": "waiting"}

    def _note_processes(self) -> None:
        for began in self._reader.processes[len(self._view.processes) :]:
            self._view.begins_process(began)

    def _begin_anew(self) -> None:
        """The run was thrown away, and maybe another one is there now."""
        self._reader, self._view = LogReader(self._folder), RunView()
