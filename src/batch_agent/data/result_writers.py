"""Results to a file, each as soon as it is known."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from ..core.errors import SpecError
from ..core.json import dumps
from ..core.results import AgentResult
from .append_file import AppendFile
from .columns import NARROW, narrow_row
from .parquet_writer import ParquetFile
from .result_rows import as_row, csv_lines

Write = Callable[[AgentResult], None]


class ResultWriter(Protocol):
    """A file of results, open."""

    def write(self, result: AgentResult) -> None:
        """On disk when it returns. Raises SpecError where there is no more room."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_results(path: str | Path, called: str = "out") -> ResultWriter:
    """A file for results, of the kind that its name says: `.parquet`, `.csv`, or lines of JSON. Written to at once, and
    readable all the while; rows come as agents finish, those of a Parquet file are in the order of the inputs.

    An older file is replaced by the first result, or at the end, if there was none; not where an error ends it.
    `called`: what messages call it. Raises SpecError for a place that cannot be written, or that another run writes
    to."""
    path = Path(path).expanduser()
    match path.suffix.lower():
        case ".parquet":
            return ParquetFile(path, called)
        case ".csv":
            return CsvFile(path, called)
        case ".jsonl" | ".ndjson" | "":
            return LinesFile(path, called)
        case suffix:
            raise SpecError(f"{called} {str(path)!r}: results are a .jsonl, .csv or .parquet file, not {suffix!r}.")


@asynccontextmanager
async def results_to(path: Path) -> AsyncIterator[Write]:
    """What writes to that file, for a run. Closing it may take a while, and does not block the loop."""
    file = open_results(path)
    try:
        yield file.write
    finally:
        await asyncio.to_thread(file.__exit__, *sys.exc_info())


class LinesFile:
    """One JSON object per line."""

    def __init__(self, path: Path, called: str = "out") -> None:
        self._file = AppendFile(path, called)

    def write(self, result: AgentResult) -> None:
        self._file.append(dumps(as_row(result)) + b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            if kind is None:
                self._file.append(b"")


class CsvFile:
    """The same columns in every row. What is no text or number is JSON."""

    def __init__(self, path: Path, called: str = "out") -> None:
        self._file = AppendFile(path, called)
        self._has_header = False

    def write(self, result: AgentResult) -> None:
        row = narrow_row(result)
        self._append(csv_lines([[row.get(name) for name in NARROW]]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            if kind is None:
                self._append(b"")

    def _append(self, lines: bytes) -> None:
        self._file.append(lines if self._has_header else csv_lines([NARROW]) + lines)
        self._has_header = True
