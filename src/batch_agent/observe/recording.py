"""Keeps the events of a run in its folder, and leaves a report there."""

import logging
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from ..core.events import Event, InStage, RunStarted
from .log import FILE, closed_line, event_line, opened_line

_log = logging.getLogger("batch_agent")


class Recording:
    """Begins with the run, not before: another process may be using the folder. What cannot be written is missed by
    the report alone, never by the run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before: list[tuple[float, Event]] = []
        self._file: BinaryIO | None = None
        self._gave_up = False

    def take(self, at: float, event: Event) -> None:
        if self._gave_up:
            return
        if self._file is None:
            self._before.append((at, event))
            if isinstance(event.event if isinstance(event, InStage) else event, RunStarted):
                self._open()
            return
        self._write(event_line(at, event))

    def flush(self) -> None:
        if self._file is not None:
            try:
                self._file.flush()
            except OSError as error:
                self._give_up(error)

    def close(self) -> None:
        """Writes the report, if the run began."""
        if self._file is None:
            return
        self._write(closed_line(time.time()))
        if self._file is not None:
            self._file.close()
        self._report()

    def _open(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = (self._folder / FILE).open("ab")
            if self._file.tell() and not _ends_whole(self._folder / FILE):
                self._file.write(b"\n")  # torn by a kill in the middle
        except OSError as error:
            self._give_up(error)
            return
        self._write(opened_line(self._before[0][0]))
        for at, event in self._before:
            self._write(event_line(at, event))
        self._before.clear()

    def _write(self, line: bytes) -> None:
        if self._file is not None:
            try:
                self._file.write(line)
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        _log.warning("The log of the run in %r cannot be written, and ends here: %s", str(self._folder), error.strerror)
        self._gave_up, file, self._file = True, self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()

    def _report(self) -> None:
        from .report import write_report

        try:
            write_report(self._folder)
        except OSError as error:
            _log.warning("There is no report in %r: %s", str(self._folder), error.strerror)


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"
