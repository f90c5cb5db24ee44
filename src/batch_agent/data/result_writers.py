"""Writers of results files. Each result is written as soon as its agent ends."""

import asyncio
import csv
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from ..aio import exit_in_thread
from ..core.errors import ErrorKind, SpecError
from ..core.json import dumps
from ..core.results import AgentResult
from ..core.run_failure import RunStopped
from ..core.task_fields import is_object_url
from ..lazy_imports import lazy_modules
from .append_file import AppendFile
from .columns import in_order, narrow_row, table_row
from .parquet_writer import ParquetFile
from .result_rows import as_row, csv_lines

with lazy_modules(globals()):
    from ..objects import remote_results

Write = Callable[[AgentResult], None]


class ResultWriter(Protocol):
    """An open results file."""

    def write(self, result: AgentResult) -> None:
        """Writes a result to disk. Raises SpecError if the disk is full."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_results(path: str | Path, label: str = "out") -> ResultWriter:
    """Opens a results file in the format of its suffix: `.parquet`, `.csv` or JSON lines. It is readable during the
    run. Rows are in the order in which agents end; in a Parquet file, in the order of the inputs. The URL of an object
    store names one object, which is written at the end, or a folder of parts: `s3://bucket/out/`.

    The first result replaces an earlier file. Without results, the file is replaced at the end, unless there was an
    error. `label`: the option that named the file, for messages. Raises SpecError if the file cannot be written or
    another run writes to it."""
    if is_object_url(path):
        return remote_results.open_remote_results(str(path), label, lambda file: open_results(file, label))
    path = Path(path).expanduser()
    match path.suffix.lower():
        case ".parquet":
            return ParquetFile(path, label)
        case ".csv":
            return CsvFile(path, label)
        case ".jsonl" | ".ndjson" | "":
            return LinesFile(path, label)
        case suffix:
            raise SpecError(f"{label} {str(path)!r}: results must be a .jsonl, .csv or .parquet file, not {suffix!r}.")


@asynccontextmanager
async def result_file_writer(path: Path | str) -> AsyncIterator[Write]:
    """The write function of a results file. Opening an object store and closing the file may take a while, but do not
    block the loop. Raises SpecError if the file cannot be opened, RunStopped if it cannot be completed at the end."""
    file = await asyncio.to_thread(open_results, path) if isinstance(path, str) else open_results(path)
    try:
        yield file.write
    except BaseException:
        await exit_in_thread(file, *sys.exc_info())
        raise
    try:
        await exit_in_thread(file, None, None, None)
    except SpecError as error:
        raise RunStopped(ErrorKind.OUT, str(error)) from error.__cause__


class LinesFile:
    """JSONL file: one JSON object per line."""

    def __init__(self, path: Path, label: str = "out") -> None:
        self._file = AppendFile(path, label)

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
    """CSV file with a column for each field, as written by `Results.to_csv`. The file is rewritten when a result brings
    a new column. Where inputs and answers have the same fields, this happens for the first few results at most. Values
    that are neither strings nor numbers are JSON. A pipe, which cannot be rewritten, has one column for the input and
    one for the answer."""

    def __init__(self, path: Path, label: str = "out") -> None:
        self._is_narrow = path.exists() and not path.is_file()
        self._file = AppendFile(path, label)
        self._names = in_order(())
        self._seen: dict[str, None] = {}
        self._has_header = False

    def write(self, result: AgentResult) -> None:
        row = narrow_row(result) if self._is_narrow else table_row(result)
        if not row.keys() <= self._seen.keys() and not (self._is_narrow and self._has_header):
            self._add_columns(row)
        self._append(csv_lines([[row.get(name) for name in self._names]]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            if kind is None:
                self._append(b"")

    def _append(self, lines: bytes) -> None:
        self._file.append(lines if self._has_header else csv_lines([self._names]) + lines)
        self._has_header = True

    def _add_columns(self, row: Mapping[str, Any]) -> None:
        self._seen |= dict.fromkeys(row)
        before, self._names = self._names, in_order(self._seen)
        if self._has_header and before != self._names:
            self._file.replace(self._rewritten(before))

    def _rewritten(self, before: Sequence[str]) -> Iterator[bytes]:
        """All rows so far, with empty new columns. Drops an empty column `output` of failed agents."""
        yield csv_lines([self._names])
        csv.field_size_limit(max(csv.field_size_limit(), 2**31 - 1))  # the limit is global to the process
        with self._file.path.open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file)
            next(rows, None)
            for cells in rows:
                row = dict(zip(before, cells, strict=True))
                yield csv_lines([[row.get(name, "") for name in self._names]])
