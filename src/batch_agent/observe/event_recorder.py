"""Keeps the events of a run in its folder, and leaves a report there."""

import logging
import os
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from ..atomic_file import make_private_dir, open_private
from ..core.errors import BatchAgentError
from ..core.events import Event, RunStarted, StageEvent
from .event_codec import event_line
from .event_log import FILE, closed_line, opened_line

if TYPE_CHECKING:
    from .report.live_builder import LiveReportBuilder

_log = logging.getLogger("batch_agent")


class EventRecorder:
    """Begins with the run, not before: another process may be using the folder. What cannot be written is missed by
    the report alone, never by the run. Nothing of it waits in a buffer that a fork of the process would write, too."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._before: list[tuple[float, Event]] = []
        self._lines: list[bytes] = []
        self._file: FileIO | None = None
        self._first_hand: LiveReportBuilder | None = None
        """Of a log that is all ours."""
        self._opened = self._last = 0.0
        self._gave_up = False

    def take(self, at: float, event: Event) -> None:
        if self._gave_up:
            return
        if self._file is not None:
            self._keep(at, event)
            return
        self._before.append((at, event))
        if isinstance(event.event if isinstance(event, StageEvent) else event, RunStarted):
            self._open()

    def flush(self) -> None:
        if self._file is None or not self._lines:
            return
        left = memoryview(b"".join(self._lines))
        self._lines.clear()
        try:
            while left:
                left = left[self._file.write(left) or 0 :]
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Writes the report, if the run began."""
        if self._file is not None:
            self._lines.append(closed_line(self._last, self._opened))
            self.flush()
        file, self._file = self._file, None
        self._before.clear()
        self._gave_up = False
        if file is not None:
            file.close()
            self._report()
        self._first_hand = None

    def _open(self) -> None:
        try:
            make_private_dir(self._folder)
            is_torn = _is_torn(self._folder / FILE)  # by a kill in the middle
            self._file = FileIO(open_private(self._folder / FILE, os.O_WRONLY | os.O_APPEND), "a")
            is_ours = self._file.tell() == 0
        except OSError as error:
            self._give_up(error)
            return
        self._opened = self._before[0][0]
        self._lines = [b"\n"] if is_torn else []
        self._lines.append(opened_line(self._opened))
        if is_ours:
            from .report.live_builder import LiveReportBuilder  # as below

            self._first_hand = LiveReportBuilder(self._folder.name, self._opened)
        for each in self._before:
            self._keep(*each)
        self._before.clear()

    def _keep(self, at: float, event: Event) -> None:
        self._last = at
        self._lines.append(event_line(at, event))
        if self._first_hand is not None:
            self._first_hand.take(at, event)

    def _give_up(self, error: OSError) -> None:
        _log.warning("The log of the run in %r cannot be written, and ends here: %s", str(self._folder), error.strerror)
        self._gave_up, file, self._file, self._first_hand = True, self._file, None, None
        self._before.clear()
        if file is not None:
            with suppress(OSError):
                file.close()

    def _report(self) -> None:
        from .report.html import REPORT, write_model, write_report  # nobody waits for it at the beginning

        try:
            if self._first_hand is not None:
                write_model(self._first_hand.model(), self._folder / REPORT)
            else:
                write_report(self._folder)
        except (BatchAgentError, OSError) as error:
            _log.warning("There is no report of the run in %r: %s", str(self._folder), error)


def _is_torn(path: Path) -> bool:
    """Whether its last line has no end."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"
