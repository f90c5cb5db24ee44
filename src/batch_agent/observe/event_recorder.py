"""Recorder that writes the event log of a run, and its report at the end."""

import logging
import os
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from ..atomic_file import make_private_dir, open_private
from ..core.errors import BatchAgentError
from ..core.events import Event, RunStarted, StageEvent
from .event_codec import event_line, rounded
from .event_log import FILE, closed_line, opened_line

if TYPE_CHECKING:
    from .report.live_builder import LiveReportBuilder

_log = logging.getLogger("batch_agent")


class EventRecorder:
    """A sink that writes the event log. It opens the file when the run starts, because another process may be using the
    directory before. A write error ends the log, never the run. Writes are unbuffered, so that a fork of the process
    does not write them again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._pending: list[tuple[float, Event]] = []
        self._lines: list[bytes] = []
        self._file: FileIO | None = None
        self._live_builder: LiveReportBuilder | None = None
        """Builder of the report, if the whole log is written by this process."""
        self._opened = self._last = 0.0
        self._failed = False

    def take(self, at: float, event: Event) -> None:
        if self._failed:
            return
        if self._file is not None:
            self._record(at, event)
            return
        self._pending.append((at, event))
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
            self._fail(error)

    def close(self) -> None:
        """Closes the log and writes the report, if the run has started."""
        if self._file is not None:
            self._lines.append(closed_line(self._last, self._opened))
            self.flush()
        file, self._file = self._file, None
        self._pending.clear()
        self._failed = False
        if file is not None:
            file.close()
            self._report()
        self._live_builder = None

    def _open(self) -> None:
        try:
            make_private_dir(self._folder)
            is_truncated = _is_truncated(self._folder / FILE)  # by a kill during a write
            self._file = FileIO(open_private(self._folder / FILE, os.O_WRONLY | os.O_APPEND), "a")
            is_new = self._file.tell() == 0
        except OSError as error:
            self._fail(error)
            return
        self._opened = self._pending[0][0]
        self._lines = [b"\n"] if is_truncated else []
        self._lines.append(opened_line(self._opened))
        if is_new:
            from .report.live_builder import LiveReportBuilder  # imported only when needed: it is slow to import

            self._live_builder = LiveReportBuilder(self._folder, self._opened)
        for each in self._pending:
            self._record(*each)
        self._pending.clear()

    def _record(self, at: float, event: Event) -> None:
        self._last = at = rounded(at)
        self._lines.append(event_line(at, event))
        if self._live_builder is not None:
            self._live_builder.take(at, event)

    def _fail(self, error: OSError) -> None:
        _log.warning("The event log in %r cannot be written and ends here: %s", str(self._folder), error.strerror)
        self._failed, file, self._file, self._live_builder = True, self._file, None, None
        self._pending.clear()
        if file is not None:
            with suppress(OSError):
                file.close()

    def _report(self) -> None:
        from .report.html import REPORT, write_model, write_report  # imported at the end: it would slow down the start

        try:
            if self._live_builder is not None:
                write_model(self._live_builder.model(), self._folder / REPORT)
            else:
                write_report(self._folder)
        except (BatchAgentError, OSError) as error:
            _log.warning("The report of the run in %r could not be written: %s", str(self._folder), error)


def _is_truncated(path: Path) -> bool:
    """Whether the last line has no newline."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"
