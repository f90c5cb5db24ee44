"""Rows on their way into a Parquet file, which can only be written whole.

A Parquet file that can be read at any moment while results come.
"""

import logging
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from ..atomic_file import atomic_replace
from ..core.errors import SpecError
from ..core.json import dumps
from ..core.results import AgentResult
from .append_file import AppendFile
from .column_types import NOTHING, Shape, in_duckdb, joined, shape_of
from .columns import in_order, table_row
from .optional_imports import require
from .parquet import write_parquet
from .result_rows import jsonable


class ParquetSpool:
    """Each row is a line of JSON in a file; the types of the columns are found meanwhile."""

    def __init__(self) -> None:
        self._shapes: dict[str, Shape] = {}
        self._names: dict[str, str] = {}
        """Of columns, by those of fields."""
        self._longest = 0

    def line(self, result: AgentResult) -> bytes:
        """What is to be added to the file."""
        row = {self._names.get(name) or self._named(name): value for name, value in table_row(result).items()}
        for name, value in row.items():
            self._shapes[name] = joined(self._shapes[name], shape_of(value))
        line = dumps({name: jsonable(value) for name, value in row.items()}) + b"\n"
        self._longest = max(self._longest, len(line))
        return line

    def write(self, lines: Path, path: Path) -> None:
        """Puts a table of all lines into the place of `path`, at once; other threads may add lines meanwhile. Raises
        SpecError, and then leaves the older one."""
        names = in_order(list(self._shapes))
        columns = {name: in_duckdb(self._shapes.get(name, NOTHING)) for name in names}
        try:
            with atomic_replace(path) as draft:
                write_parquet(lines, columns, draft, self._longest)
        except OSError as error:
            raise SpecError(f"{error.strerror}.") from error

    def _named(self, name: str) -> str:
        """A new column. DuckDB does not tell A from a: the second has a number."""
        taken = {other.lower() for other in self._shapes}
        column, number = name, 1
        while column.lower() in taken:
            number += 1
            column = f"{name}_{number}"
        self._names[name] = column
        self._shapes[column] = NOTHING
        return column


_SHARE = 0.05
"""Of the time may go into writing the file again and again."""
_LEAST_PAUSE = 1.0

_log = logging.getLogger("batch_agent")


class ParquetFile:
    """Results are kept as lines of JSON beside it (NAME.parquet.rows.jsonl), and the file is made of them anew now and
    then, in a thread, and at the end. Then the lines go. After a crash they hold every result, and the file those up
    to its last writing."""

    def __init__(self, path: Path, called: str = "out") -> None:
        require("duckdb", f"{called} {str(path)!r}, a Parquet file,")
        if path.is_dir():
            raise SpecError(f"{called} {str(path)!r} cannot be written: it is a folder.")
        self._path = path
        self._said = f"{called} {str(path)!r}"
        self._lines = AppendFile(path.with_name(f"{path.name}.rows.jsonl"), called, path)
        self._spool = ParquetSpool()
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
