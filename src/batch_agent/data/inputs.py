"""Inputs of a run from files, tables, queries and iterables."""

import asyncio
import sys
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sized
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.options import Rows
from ..core.safe_text import safe_text
from ..core.task_fields import STDIN, check_inputs, is_object_url, is_path, is_url, table_library
from ..lazy_imports import lazy_modules
from .row_iterators import SizedRows, ThreadIterator
from .sql_query import SqlQuery

with lazy_modules(globals()):
    from . import input_files, row_selection, tables

if TYPE_CHECKING:
    from .row_selection import RowSelection

_MAX_LIST_ROWS = 100_000

Inputs = Iterable[Any] | AsyncIterable[Any]
Notify = Callable[[str], None]
ALL_ROWS = Rows()


def print_notice(text: str) -> None:
    """Prints a notice on standard error, like a run without a sink."""
    print(f"batch-agent: {safe_text(text)}", file=sys.stderr, flush=True)


def read_inputs(source: Any, rows: Rows = ALL_ROWS, notify: Notify = print_notice) -> Inputs:
    """Inputs from a file, a folder, a table, a dataset or a query. Lists and other iterables are returned unchanged.
    Inputs that fit into memory become a list, so that they can be counted and reordered; others are read during the
    run. `rows`: which inputs to use, and how to read files. `notify`: called with the size of a download, and with the
    names of files that are not text. Blocks. Raises SpecError for inputs that cannot be read."""
    check_inputs(source)
    select = _selection(rows)
    if is_path(source):
        if "://" in str(source) and not is_url(source) and not is_object_url(source):
            raise SpecError(
                f"{str(source).partition('://')[0]}://...: for inputs from a database, use SqlQuery(url, query)."
            )
        return input_files.read_file(source, select, rows.input_format, notify, rows.encoding)
    if isinstance(source, SqlQuery):
        return _query_rows(source, select)
    library = table_library(source)
    found = source if library is None else _table_rows(source, library)
    return found if select is None else _selected(found, select)


def _table_rows(source: Any, library: str) -> Inputs:
    return tables.read_table(source, library)


async def read_inputs_async(source: Any, rows: Rows = ALL_ROWS, notify: Notify = print_notice) -> Inputs:
    """`read_inputs` without blocking the event loop."""
    if is_path(source) or isinstance(source, SqlQuery) or table_library(source):
        notices: list[str] = []
        try:
            return await asyncio.to_thread(read_inputs, source, rows, notices.append)
        finally:
            for notice in notices:  # from the loop: a sink of events is not safe in threads
                notify(notice)
    return read_inputs(source, rows, notify)


def _selection(rows: Rows) -> "RowSelection | None":
    if not rows.selects:
        return None
    return row_selection.RowSelection(rows)


def _selected(inputs: Inputs, select: "RowSelection") -> Inputs:
    """The selected inputs: a list if the inputs can be counted, otherwise an iterable that selects while it is read."""
    if isinstance(inputs, ThreadIterator):
        return ThreadIterator(_SelectedRows(inputs.rows, select))
    if isinstance(inputs, AsyncIterable):
        return select.select_async(inputs)
    if isinstance(inputs, SizedRows) and not select.is_bounded:
        rows = _SelectedRows(inputs, select)
        return SizedRows(sum(1 for _ in rows), lambda: iter(rows))
    return list(select.select(inputs)) if isinstance(inputs, Sized) else select.select(inputs)


@dataclass(frozen=True, slots=True)
class _SelectedRows:
    """Iterable that selects again each time."""

    rows: Iterable[Any]
    select: "RowSelection"

    def __iter__(self) -> Iterator[Any]:
        return self.select.select(self.rows)


def check_output_path(inputs: Any, out: Path | str, label: str = "out") -> None:
    """Raises SpecError if the results would overwrite the inputs or be read as inputs by the next run."""
    if not is_path(inputs) or is_url(inputs) or inputs == STDIN:
        return
    if is_object_url(inputs) or isinstance(out, str):
        if is_object_url(inputs) and is_object_url(out):
            _check_objects(inputs, str(out), label)
        return
    if input_files.is_pattern(inputs) and not Path(inputs).exists():
        _check_no_match(inputs, out, label)
        return
    source, target = Path(inputs).expanduser().resolve(), out.expanduser().resolve()
    if target == source:
        raise SpecError(f"{label} {str(out)!r} would overwrite the inputs: use another file.")
    if target.is_relative_to(source):
        raise SpecError(
            f"{label} {str(out)!r} is in the folder of the inputs, and would be one of them in the next run: use a "
            "path outside of it."
        )


def _check_no_match(pattern: Any, out: Path, label: str) -> None:
    absolute, target = str(Path(pattern).expanduser().absolute()), out.expanduser().absolute()
    is_match = fnmatch(str(target), absolute.replace("**/", "")) if "**/" in absolute else target.match(absolute)
    if is_match:
        raise SpecError(
            f"{label} {str(out)!r} matches the inputs {str(pattern)!r}, and would be one of them in the next run: use "
            "another name."
        )


def _check_objects(inputs: str, out: str, label: str) -> None:
    folder = out.endswith("/")
    written = f"{out}part-00000.jsonl" if folder else out.replace("*", "part-00000")
    if fnmatch(written, f"{inputs}*" if inputs.endswith("/") else inputs):
        raise SpecError(
            f"{label} {out!r} is among the inputs {inputs!r}: it would overwrite them, or be one of them in the next "
            "run. Use another folder."
        )


def _query_rows(query: SqlQuery, select: "RowSelection | None") -> Inputs:
    """A list of the rows. If there are too many, the query runs again and its rows are read during the run."""
    found: Iterable[Any] = query if select is None else _SelectedRows(query, select)
    rows = list(islice(found, _MAX_LIST_ROWS + 1))
    return rows if len(rows) <= _MAX_LIST_ROWS else ThreadIterator(found)
