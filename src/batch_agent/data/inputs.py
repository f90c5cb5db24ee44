"""Inputs of a run from files, tables, queries and iterables."""

import asyncio
from collections.abc import AsyncIterable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from ..core.errors import SpecError
from ..core.task_fields import check_inputs, is_path, table_library
from .input_files import read_file
from .row_iterators import ThreadIterator
from .sql_query import SqlQuery
from .tables import read_table

_MAX_LIST_ROWS = 100_000

Inputs = Iterable[Any] | AsyncIterable[Any]


def read_inputs(source: Any) -> Inputs:
    """Inputs from a file, a folder, a table, a dataset or a query; lists and other iterables are returned unchanged.
    Inputs that fit into memory become a list, so that they can be counted and reordered; others are read during the
    run. Blocks. Raises SpecError for inputs that cannot be read."""
    check_inputs(source)
    if is_path(source):
        if "://" in str(source):
            raise SpecError(
                f"{str(source).partition('://')[0]}://...: for inputs from a database, use SqlQuery(url, query)."
            )
        return read_file(Path(source).expanduser())
    if isinstance(source, SqlQuery):
        return _query_rows(source)
    library = table_library(source)
    return source if library is None else read_table(source, library)


async def read_inputs_async(source: Any) -> Inputs:
    """`read_inputs` without blocking the event loop."""
    if is_path(source) or isinstance(source, SqlQuery) or table_library(source):
        return await asyncio.to_thread(read_inputs, source)
    return read_inputs(source)


def check_output_path(inputs: Any, out: Path, label: str = "out") -> None:
    """Raises SpecError if the results would overwrite the inputs, or be among them in the next run."""
    if not is_path(inputs):
        return
    source, target = Path(inputs).expanduser().resolve(), out.expanduser().resolve()
    if target == source:
        raise SpecError(f"{label} {str(out)!r} would overwrite the inputs: use another file.")
    if target.is_relative_to(source):
        raise SpecError(
            f"{label} {str(out)!r} is in the folder of the inputs, and would be one of them in the next run: use a "
            "path outside of it."
        )


def _query_rows(query: SqlQuery) -> Inputs:
    """A list of the rows; if there are too many, the query runs again and its rows are read during the run."""
    rows = list(islice(query, _MAX_LIST_ROWS + 1))
    return rows if len(rows) <= _MAX_LIST_ROWS else ThreadIterator(query)
