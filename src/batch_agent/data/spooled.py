"""A Parquet file that can be read at any moment while results come."""

import logging
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from ..core.errors import SpecError
from ..core.results import AgentResult
from .extras import needed
from .growing import GrowingFile
from .spool import Spool

_SHARE = 0.05
"""Of the time may go into writing the file again and again."""
_LEAST_PAUSE = 1.0

_log = logging.getLogger("batch_agent")


class ParquetFile:
    """Results are kept as lines of JSON beside it (NAME.parquet.rows.jsonl), and the file is made of them anew now and
    then, in a thread, and at the end. Then the lines go. After a crash they hold every result, and the file those up
    to its last writing."""

    def __init__(self, path: Path, called: str = "out") -> None:
        needed("duckdb", f"{called} {str(path)!r}, a Parquet file,")
        if path.is_dir():
            raise SpecError(f"{called} {str(path)!r} cannot be written: it is a folder.")
        self._path = path
        self._said = f"{called} {str(path)!r}"
        self._lines = GrowingFile(path.with_name(f"{path.name}.rows.jsonl"), called, path)
        self._spool = Spool()
        self._news = threading.Event()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        """From the first row on."""

    def write(self, result: AgentResult) -> None:
        self._lines.append(self._spool.line(result))
        self._news.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep_up, name="batch-agent-out", daemon=True)
            self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises SpecError where the file cannot be written; beside another error, it is only logged."""
        self._over.set()
        self._news.set()
        if self._thread is not None:
            self._thread.join()
        with self._lines:
            try:
                self._finish(is_whole=kind is None)
            except SpecError as problem:
                if kind is None:
                    raise
                _log.warning("%s", problem)

    def _finish(self, *, is_whole: bool) -> None:
        lines = self._lines.path
        if is_whole:
            self._lines.append(b"")  # what is there goes, also where no row has come
        if is_whole or self._thread is not None:
            self._write_anew()
        elif lines.exists() and lines.stat().st_size:  # of a run that was killed
            return
        lines.unlink(missing_ok=True)

    def _write_anew(self) -> None:
        try:
            self._spool.write(self._lines.path, self._path)
        except SpecError as error:
            raise SpecError(
                f"{self._said} cannot be written: {error} All results are in {str(self._lines.path)!r}."
            ) from error

    def _keep_up(self) -> None:
        """In the thread: writes the file whenever there are new rows, but for a pause after each writing."""
        while self._news.wait() and not self._over.is_set():
            self._news.clear()
            began = time.monotonic()
            with suppress(SpecError):  # a row that came meanwhile and is of another kind, or no room: later ones tell
                self._spool.write(self._lines.path, self._path)
            self._over.wait(pause_after(time.monotonic() - began))


def pause_after(seconds: float) -> float:
    """So long after a writing that took `seconds`, all of them together take no more than their share."""
    return max(_LEAST_PAUSE, seconds * (1 / _SHARE - 1))
