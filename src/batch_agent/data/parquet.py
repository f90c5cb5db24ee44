"""Parquet files, read and written by DuckDB."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from ..core.errors import SpecError
from ..core.json import loads_exact
from .optional_imports import require
from .plain_values import check_unique, plain_value
from .row_iterators import SizedRows, ThreadIterator

if TYPE_CHECKING:
    from ..objects.store_client import RemoteFile

_BATCH_ROWS = 1000
_MAX_BYTES = 256 * 1024 * 1024
"""Uncompressed size up to which a file is read at once. Larger files are read during the run."""
_MIN_OBJECT_BYTES = 2**24
_WRAPPED_ERROR = re.compile(r'"exception_message":("(?:[^"\\]|\\.)*")')


def parquet_rows(path: "Path | RemoteFile") -> "list[Any] | SizedRows | ThreadIterator":
    """Rows of a Parquet file. For a large one in an object store, an async iterator. Raises SpecError."""
    with _connect(path) as connection:
        rows = _count(connection, path)
        [(size,)] = connection.execute(
            "SELECT sum(total_uncompressed_size)::BIGINT FROM parquet_metadata(?)", [str(path)]
        ).fetchall()
    found = SizedRows(rows, lambda: iter_parquet(path))
    if (size or 0) <= _MAX_BYTES:
        return found.materialized()
    return found if isinstance(path, Path) else ThreadIterator(found)


def count_parquet(path: Path) -> int:
    """Number of rows, from the metadata of the file. Raises SpecError."""
    with _connect(path) as connection:
        return _count(connection, path)


def write_parquet(lines: Path, columns: Mapping[str, str], path: Path, longest_line: int) -> None:
    """Writes the objects of a JSONL file as Parquet, sorted by `index`, `model` and `sample`. `columns`: type of each
    column. Raises SpecError."""
    duckdb = require("duckdb", "A Parquet file")
    object_bytes = max(longest_line, _MIN_OBJECT_BYTES)
    try:
        with duckdb.connect() as connection:
            connection.execute("SET enable_progress_bar = false")  # it would be printed among the results
            rows = connection.read_json(
                str(lines), format="newline_delimited", columns=dict(columns), maximum_object_size=object_bytes
            )
            order = ", ".join(["index", *(f'"{name}"' for name in ("model", "sample") if name in columns)])
            rows.order(order).write_parquet(str(path), compression="zstd")
    except duckdb.Error as error:
        raise SpecError(_reason(error)) from error


def iter_parquet(path: "Path | RemoteFile") -> Iterator[Any]:
    """Rows of a Parquet file, read on demand. Raises SpecError."""
    with _connect(path) as connection:
        found = connection.execute("SELECT * FROM read_parquet(?)", [str(path)])
        names = _names(path, connection.cursor(), [column[0] for column in found.description])
        json_columns = [str(column[1]) == "JSON" for column in found.description]
        while rows := found.fetchmany(_BATCH_ROWS):
            for row in rows:
                yield {
                    name: loads_exact(value) if is_json and value is not None else plain_value(value)
                    for name, value, is_json in zip(names, row, json_columns, strict=True)
                }


def _count(connection: Any, path: "Path | RemoteFile") -> int:
    [(rows,)] = connection.execute("SELECT sum(num_rows)::BIGINT FROM parquet_file_metadata(?)", [str(path)]).fetchall()
    return int(rows)


def _names(path: "Path | RemoteFile", connection: Any, duckdb_names: Sequence[str]) -> list[str]:
    """Column names in the file. DuckDB ignores case, and renames one of `A` and `a`."""
    schema = connection.execute("SELECT name, num_children FROM parquet_schema(?)", [str(path)]).fetchall()
    names: list[str] = []
    at = 1
    while at < len(schema):
        names.append(schema[at][0])
        left = 1
        while left:  # skip nested columns
            left += (schema[at][1] or 0) - 1
            at += 1
    if len(names) != len(duckdb_names):  # several files, or columns derived from the path
        return list(duckdb_names)
    return check_unique(names, repr(str(path)))


@contextmanager
def _connect(path: "Path | RemoteFile") -> Iterator[Any]:
    duckdb = require("duckdb", f"{path.name!r}, a Parquet file,")
    try:
        with duckdb.connect() as connection:
            connection.execute("SET enable_progress_bar = false")  # it would be printed among the results
            connection.execute("SET TimeZone = 'UTC'")  # otherwise timestamps depend on the local time zone
            if not isinstance(path, Path):
                connection.register_filesystem(path.store.filesystem)
            yield connection
    except duckdb.Error as error:
        raise SpecError(f"{str(path)!r} cannot be read: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """First line of an error, without the JSON that some errors are wrapped in."""
    first = str(error).partition("\n")[0]
    wrapped = _WRAPPED_ERROR.search(first)
    message: str = first if wrapped is None else orjson.loads(wrapped[1])
    return f"{message.removesuffix('.')}."
