"""Writer of a Parquet file of results that is readable at any time during a run.

A Parquet file can only be written as a whole, so results are spooled as JSON lines, from which the file is rewritten
from time to time."""

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..atomic_file import atomic_replace
from ..core.errors import SpecError
from ..core.json import dumps
from ..core.results import AgentResult
from .append_file import AppendFile
from .column_types import NULL, ColumnType, column_type, common_type, duckdb_type
from .columns import RESULT_TABLE, TableLayout, table_row
from .optional_imports import require
from .parquet import write_parquet
from .result_rows import jsonable


class ParquetSpool:
    """Converts rows to JSON lines, and infers the types of the columns."""

    def __init__(self, layout: TableLayout) -> None:
        self._order = layout.order
        self._types: dict[str, ColumnType] = {}
        self._names: dict[str, str] = {}
        """Names of columns by names of fields."""
        self._longest_line = 0

    def line(self, values: Mapping[str, Any]) -> bytes:
        """The line of a row, to be appended to the spool file."""
        row = {self._names.get(name) or self._new_column(name): value for name, value in values.items()}
        for name, value in row.items():
            self._types[name] = common_type(self._types[name], column_type(value))
        line = dumps({name: jsonable(value) for name, value in row.items()}) + b"\n"
        self._longest_line = max(self._longest_line, len(line))
        return line

    def write(self, lines: Path, path: Path) -> None:
        """Atomically replaces `path` by a table of all lines, while other threads may append lines. If it raises
        SpecError, the earlier file is unchanged."""
        names = self._order(list(self._types))
        columns = {name: duckdb_type(self._types.get(name, NULL)) for name in names}
        try:
            with atomic_replace(path) as draft:
                write_parquet(lines, columns, draft, self._longest_line)
        except OSError as error:
            raise SpecError(f"{error.strerror}.") from error

    def _new_column(self, name: str) -> str:
        """Adds a column. DuckDB ignores the case of names, so the second one of `A` and `a` gets a number."""
        taken = {other.lower() for other in self._types}
        column, number = name, 1
        while column.lower() in taken:
            number += 1
            column = f"{name}_{number}"
        self._names[name] = column
        self._types[column] = NULL
        return column


_MAX_TIME_SHARE = 0.05
"""Maximum share of the time for rewriting the file."""
_MIN_PAUSE = 1.0

_log = logging.getLogger("batch_agent")


class ParquetFile:
    """Parquet file of results. A spool file next to it (NAME.parquet.rows.jsonl) has every result as a JSON line. A
    thread rewrites the Parquet file from it from time to time and at the end, when the spool file is deleted. After a
    crash, the spool file has all results, and the Parquet file those up to its last rewrite."""

    def __init__(self, path: Path, label: str = "out") -> None:
        require("duckdb", f"{label} {str(path)!r}, a Parquet file,")
        if path.is_dir():
            raise SpecError(f"{label} {str(path)!r} cannot be written: it is a folder.")
        self._path = path
        self._display_name = f"{label} {str(path)!r}"
        self._lines = AppendFile(path.with_name(f"{path.name}.rows.jsonl"), label, path)
        self._spool = ParquetSpool(RESULT_TABLE)
        self._has_new_rows = threading.Event()
        self._is_closing = threading.Event()
        self._thread: threading.Thread | None = None
        """Started with the first row."""

    def write(self, result: AgentResult) -> None:
        self._lines.append(self._spool.line(table_row(result)))
        self._has_new_rows.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._rewrite_until_closed, name="batch-agent-out", daemon=True)
            self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises SpecError if the file cannot be written. If the block raised, that error is only logged."""
        self._is_closing.set()
        self._has_new_rows.set()
        if self._thread is not None:
            self._thread.join()
        with self._lines:
            try:
                self._finish(is_complete=kind is None)
            except SpecError as problem:
                if kind is None:
                    raise
                _log.warning("%s", problem)

    def _finish(self, *, is_complete: bool) -> None:
        lines = self._lines.path
        if is_complete:
            self._lines.append(b"")  # replaces earlier contents even if there are no rows
        if is_complete or self._thread is not None:
            self._rewrite()
        elif lines.exists() and lines.stat().st_size:  # the spool of an earlier run that was killed
            return
        lines.unlink(missing_ok=True)

    def _rewrite(self) -> None:
        try:
            self._spool.write(self._lines.path, self._path)
        except SpecError as error:
            raise SpecError(
                f"{self._display_name} cannot be written: {error} All results are in {str(self._lines.path)!r}."
            ) from error

    def _rewrite_until_closed(self) -> None:
        """Rewrites the file in the thread when there are new rows, with a pause after each rewrite."""
        while self._has_new_rows.wait() and not self._is_closing.is_set():
            self._has_new_rows.clear()
            began = time.monotonic()
            with suppress(SpecError):  # a new row of another type, or a full disk: the last rewrite reports it
                self._spool.write(self._lines.path, self._path)
            self._is_closing.wait(pause_after(time.monotonic() - began))


def pause_after(seconds: float) -> float:
    """Pause after a rewrite that took `seconds`, so that rewriting takes at most its share of the time."""
    return max(_MIN_PAUSE, seconds * (1 / _MAX_TIME_SHARE - 1))
