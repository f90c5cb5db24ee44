"""Parquet files, by DuckDB."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from ..core.errors import SpecError
from .column_names import check_unique
from .optional_imports import require
from .plain_values import plain_value
from .row_iterators import SizedRows

_AT_ONCE = 1000
_MOST_BYTES = 256 * 1024 * 1024
"""Of what is in a file, without compression: more is read while the run goes on."""
_USUAL_LINE = 2**24
_WRAPPED = re.compile(r'"exception_message":("(?:[^"\\]|\\.)*")')


def parquet_rows(path: Path) -> "list[Any] | SizedRows":
    """Raises SpecError."""
    with _reading(path) as connection:
        name = [str(path)]
        [(rows,)] = connection.execute("SELECT sum(num_rows)::BIGINT FROM parquet_file_metadata(?)", name).fetchall()
        [(size,)] = connection.execute(
            "SELECT sum(total_uncompressed_size)::BIGINT FROM parquet_metadata(?)", name
        ).fetchall()
    found = SizedRows(rows, lambda: _rows(path))
    return found.kept() if (size or 0) <= _MOST_BYTES else found


def write_parquet(lines: Path, columns: Mapping[str, str], path: Path, longest_line: int) -> None:
    """The objects in a file of JSON lines, in the order of their `index`. `columns`: the type of each. Raises
    SpecError."""
    duckdb = require("duckdb", "A Parquet file")
    room = max(longest_line, _USUAL_LINE)
    try:
        with duckdb.connect() as connection:
            connection.execute("SET enable_progress_bar = false")  # it would be printed among the results
            rows = connection.read_json(
                str(lines), format="newline_delimited", columns=dict(columns), maximum_object_size=room
            )
            rows.order("index").write_parquet(str(path), compression="zstd")
    except duckdb.Error as error:
        raise SpecError(_reason(error)) from error


def _rows(path: Path) -> Iterator[Any]:
    with _reading(path) as connection:
        found = connection.execute("SELECT * FROM read_parquet(?)", [str(path)])
        names = _names(path, connection.cursor(), [column[0] for column in found.description])
        texts = [str(column[1]) == "JSON" for column in found.description]
        while rows := found.fetchmany(_AT_ONCE):
            for row in rows:
                yield {
                    name: orjson.loads(value) if is_json and value is not None else plain_value(value)
                    for name, value, is_json in zip(names, row, texts, strict=True)
                }


def _names(path: Path, connection: Any, seen: Sequence[str]) -> list[str]:
    """As they are in the file: DuckDB does not tell A from a, and renames one of them."""
    schema = connection.execute("SELECT name, num_children FROM parquet_schema(?)", [str(path)]).fetchall()
    names: list[str] = []
    at = 1
    while at < len(schema):
        names.append(schema[at][0])
        left = 1
        while left:  # past all that is below it
            left += (schema[at][1] or 0) - 1
            at += 1
    if len(names) != len(seen):  # more than one file, or columns that are made of its path
        return list(seen)
    return check_unique(names, repr(str(path)))


@contextmanager
def _reading(path: Path) -> Iterator[Any]:
    duckdb = require("duckdb", f"{path.name!r}, a Parquet file,")
    try:
        with duckdb.connect() as connection:
            connection.execute("SET enable_progress_bar = false")  # it would be printed among the results
            connection.execute("SET TimeZone = 'UTC'")  # else moments are told by the clock of this machine
            yield connection
    except duckdb.Error as error:
        raise SpecError(f"{str(path)!r} cannot be read: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Without the query, and without the JSON that some are wrapped in."""
    first = str(error).partition("\n")[0]
    wrapped = _WRAPPED.search(first)
    said: str = first if wrapped is None else orjson.loads(wrapped[1])
    return f"{said.removesuffix('.')}."
