"""Whatever holds inputs, as an iterable of them."""

import asyncio
from collections.abc import AsyncIterable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from ..core.errors import SpecError
from ..core.task_fields import check_inputs, is_path, table_library
from .files import read_file
from .row_iterators import ThreadIterator
from .sql import SqlQuery
from .tables import read_table

_MOST_GATHERED = 100_000

Inputs = Iterable[Any] | AsyncIterable[Any]


def read_inputs(source: Any) -> Inputs:
    """The inputs in a file, a folder, a table, a dataset or the rows of a query; lists and other iterables are what
    they are. All that fits the memory is a list, so that it can be counted, and asked in the best order; the rest is
    read while the run goes on. Blocks; raises SpecError for what cannot be read."""
    check_inputs(source)
    if is_path(source):
        if "://" in str(source):
            raise SpecError(
                f"{str(source).partition('://')[0]}://...: inputs from a database are SqlQuery(url, query)."
            )
        return read_file(Path(source).expanduser())
    if isinstance(source, SqlQuery):
        return _gathered(source)
    library = table_library(source)
    return source if library is None else read_table(source, library)


async def gather_inputs(source: Any) -> Inputs:
    """`read_inputs` for an event loop, which does not wait for the disk or the database."""
    if is_path(source) or isinstance(source, SqlQuery) or table_library(source):
        return await asyncio.to_thread(read_inputs, source)
    return read_inputs(source)


def check_apart(inputs: Any, out: Path, called: str = "out") -> None:
    """Raises SpecError for results that would take the place of the inputs, or be among them the next time."""
    if not is_path(inputs):
        return
    source, place = Path(inputs).expanduser().resolve(), out.expanduser().resolve()
    if place == source:
        raise SpecError(f"{called} {str(out)!r} would overwrite the inputs: name another file.")
    if place.is_relative_to(source):
        raise SpecError(
            f"{called} {str(out)!r} is in the folder of the inputs, and would be one of them the next time: name a "
            "place outside of it."
        )


def _gathered(query: SqlQuery) -> Inputs:
    """Of more rows than that, none is kept: they are asked for again, and read as they are needed."""
    rows = list(islice(query, _MOST_GATHERED + 1))
    return rows if len(rows) <= _MOST_GATHERED else ThreadIterator(query)
