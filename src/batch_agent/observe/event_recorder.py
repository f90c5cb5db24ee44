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
from ..lazy_imports import lazy_modules
from .event_codec import event_line, rounded
from .event_log import FILE, closed_line, opened_line

with lazy_modules(globals()):
    from .report import html, page_model, run_view

if TYPE_CHECKING:
    from .report.run_view import RunView

_log = logging.getLogger("batch_agent")


class EventRecorder:
    """Sink that writes the event log. It opens the file when the run starts, because another process may use the
    directory until then. A write error ends the log, never the run. Writes are unbuffered, so that a fork of the
    process cannot repeat them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._pending: list[tuple[float, Event]] = []
        self._lines = bytearray()
        self._file: FileIO | None = None
        self._view: RunView | None = None
        """View for the report, if this process writes the whole log: reading the log again would take as long as
        writing it."""
        self._opened = self._last = 0.0
        self._failed = False

    def take(self, at: float, event: Event) -> None:
        if self._file is not None:
            self._last = at = round(at * 1e4) / 1e4
            self._lines += event_line(at, event)
            if self._view is not None:
                self._view.take(at - self._opened, event)
            return
        if self._failed:
            return
        self._pending.append((at, event))
        if isinstance(event.event if isinstance(event, StageEvent) else event, RunStarted):
            self._open()

    def flush(self) -> None:
        if self._file is None or not self._lines:
            return
        left, self._lines = memoryview(self._lines), bytearray()
        try:
            while left:
                left = left[self._file.write(left) or 0 :]
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        """Closes the log and writes the report, if the run has started."""
        if self._file is not None:
            self._lines += closed_line(self._last, self._opened)
            self.flush()
        file, self._file = self._file, None
        self._pending.clear()
        self._failed = False
        if file is not None:
            file.close()
            self._report()
        self._view = None

    def _open(self) -> None:
        try:
            make_private_dir(self._folder)
            is_truncated = _is_truncated(self._folder / FILE)  # true if a process was killed during a write
            self._file = FileIO(open_private(self._folder / FILE, os.O_WRONLY | os.O_APPEND), "a")
            is_new = self._file.tell() == 0
        except OSError as error:
            self._fail(error)
            return
        self._opened = rounded(self._pending[0][0])
        self._lines = bytearray(b"\n" if is_truncated else b"") + opened_line(self._opened)
        if is_new:
            self._view = run_view.RunView()
        pending, self._pending = self._pending, []
        for each in pending:
            self.take(*each)

    def _fail(self, error: OSError) -> None:
        _log.warning("The event log in %r cannot be written and ends here: %s", str(self._folder), error.strerror)
        self._failed, file, self._file, self._view = True, self._file, None, None
        self._pending.clear()
        if file is not None:
            with suppress(OSError):
                file.close()

    def _report(self) -> None:
        try:
            if self._view is not None:
                model = page_model.final_model(self._view, self._folder, self._opened)
                html.write_model(model, self._folder / html.REPORT)
            else:
                html.write_report(self._folder)
        except (BatchAgentError, OSError) as error:
            _log.warning("The report of the run in %r could not be written: %s", str(self._folder), error)


def _is_truncated(path: Path) -> bool:
    """Whether the last line has no newline."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"
