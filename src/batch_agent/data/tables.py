"""Inputs from tables in memory: pandas, polars and pyarrow tables and columns, DuckDB relations, datasets of Hugging
Face and Ray."""

from collections.abc import Iterator
from typing import Any

from ..core.errors import SpecError
from .optional_imports import require
from .plain_values import check_unique, plain_row, plain_value
from .row_iterators import SizedRows, ThreadIterator

Rows = list[Any] | SizedRows | ThreadIterator


def read_table(source: Any, library: str) -> Rows:
    """Rows as dicts by column name; for a single column, its values. Raises SpecError."""
    match library:
        case "duckdb":
            return _relation(source)
        case "datasets":
            return _dataset(source)
        case "ray":
            return ThreadIterator(_RayRows(source))
        case _:
            return _frame(source)


def _frame(source: Any) -> Rows:
    narwhals = require("narwhals", f"A {_kind(source)} as inputs")
    try:
        table = narwhals.from_native(source, allow_series=True)
    except narwhals.exceptions.DuplicateError as error:
        raise SpecError(f"inputs: two columns have the same name. {' '.join(str(error).split())}.") from error
    except TypeError as error:
        raise SpecError(f"inputs cannot be read from a {_kind(source)}: pass a table, or one column of it.") from error
    if isinstance(table, narwhals.LazyFrame):
        table = table.collect()
    if isinstance(table, narwhals.Series):
        return SizedRows(len(table), lambda: map(plain_value, table.to_list())).materialized()
    return SizedRows(len(table), lambda: map(plain_row, table.iter_rows(named=True))).materialized()


def _relation(source: Any) -> Rows:
    duckdb = require("duckdb", "A relation of DuckDB as inputs")
    if not isinstance(source, duckdb.DuckDBPyRelation):
        raise SpecError(
            f"inputs cannot be read from a {_kind(source)}: pass a relation, such as connection.sql(...) returns."
        )
    names = check_unique(source.columns, "The relation", "rename one of them with AS")
    try:
        rows = source.fetchall()  # at once, because another query on its connection would end this one
    except duckdb.Error as error:
        raise SpecError(f"inputs: the query of the relation failed: {error}") from error
    return [plain_row(dict(zip(names, row, strict=True))) for row in rows]


def _dataset(source: Any) -> Rows:
    datasets = require("datasets", "A dataset as inputs", "datasets")
    if isinstance(source, datasets.IterableDataset):
        return ThreadIterator(_Streamed(source.with_format(None)))
    plain = source.with_format(None, columns=source.format["columns"])
    return SizedRows(len(plain), lambda: map(plain_row, plain)).materialized()


class _Streamed:
    """Streaming dataset, which is downloaded while it is read."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return map(plain_row, self._dataset)


class _RayRows:
    """Rows of a Ray Dataset, which Ray reads on demand."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return map(plain_row, self._dataset.iter_rows())


def _kind(source: Any) -> str:
    return f"{type(source).__module__.partition('.')[0].lstrip('_')} {type(source).__name__}"
