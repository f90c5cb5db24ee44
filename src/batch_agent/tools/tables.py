"""Tables and arrays of data libraries, whole: their own `str` leaves out what does not fit a terminal."""

import csv
import io
import json
import math
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, time
from typing import Any


class NoData(Exception):
    """A value that stands for data which is not there yet."""


Table = tuple[Sequence[str], Iterable[Sequence[Any]]]
"""The names of the columns, and the rows."""


def table_of(value: Any) -> Table | None:
    """Of a data frame, a pandas Series, a pyarrow table or a structured NumPy array; None for other values. Raises
    NoData."""
    if (pandas := sys.modules.get("pandas")) is not None:  # without it there are no such values
        if isinstance(value, pandas.DataFrame):
            return _frame(value, value.columns, value.itertuples(index=False, name=None))
        if isinstance(value, pandas.Series):
            return _frame(value, ["value" if value.name is None else value.name], ((each,) for each in value))
    if (polars := sys.modules.get("polars")) is not None:
        if isinstance(value, polars.LazyFrame):
            raise NoData("the tool returned a LazyFrame, which is a query and no data: return its collect()")
        if isinstance(value, polars.DataFrame):
            return value.columns, value.iter_rows()
    pyarrow = sys.modules.get("pyarrow")
    if pyarrow is not None and isinstance(value, pyarrow.Table | pyarrow.RecordBatch):
        return value.column_names, zip(*(column.to_pylist() for column in value.columns), strict=True)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.names and value.ndim == 1:
        return value.dtype.names, value.tolist()
    return None


def as_csv(table: Table) -> str:
    """With a head; what is missing is empty, and a cell that is itself a list or the like is JSON."""
    names, rows = table
    if not names:
        return "(a table without columns)"
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue().removesuffix("\n")


def as_plain(value: Any) -> Any:
    """A value that JSON does not have, as lists, dicts, numbers and texts; a nested table as its records. What nobody
    knows is its `str`."""
    if (table := table_of(value)) is not None:
        names, rows = table
        if len(set(names)) < len(names):  # a record would have only the last of them
            return [list(names), *map(list, rows)]
        return [dict(zip(names, row, strict=True)) for row in rows]
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        return _of_numpy(value, numpy)
    if is_missing(value):
        return None
    if isinstance(value, Mapping):
        return dict(value)
    for name in ("to_pylist", "to_list", "tolist"):  # pyarrow, polars and pandas, and whoever does as NumPy does
        listed = getattr(value, name, None)
        if callable(listed) and not isinstance(value, type):
            return listed()
    if isinstance(value, Collection):  # a range, the values of a dict
        return list(value)
    pyarrow = sys.modules.get("pyarrow")
    return value.as_py() if pyarrow is not None and isinstance(value, pyarrow.Scalar) else str(value)


def _frame(value: Any, columns: Iterable[Any], rows: Iterable[tuple[Any, ...]]) -> Table:
    """With its index, unless that only counts."""
    names = [_name(column) for column in columns]
    index = value.index
    if index.equals(sys.modules["pandas"].RangeIndex(len(index))):
        return names, rows
    own = [str(name) if name is not None else "index" for name in index.names]
    return [*own, *names], _beside(index, index.nlevels > 1, rows)


def _beside(index: Iterable[Any], is_deep: bool, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    for key, row in zip(index, rows, strict=True):
        yield (*key, *row) if is_deep else (key, *row)


def _name(column: Any) -> str:
    return ".".join(map(str, column)) if isinstance(column, tuple) else str(column)


def _cell(value: Any) -> str:
    kind = type(value)
    if kind is float:  # the common ones first: a table may have millions
        return "" if value != value else str(value)
    if kind is int or kind is bool:
        return str(value)
    if isinstance(value, str):
        return value
    if value is None or is_missing(value):
        return ""
    if isinstance(value, date | time):  # also date and time together
        return value.isoformat()
    from .texts import as_text  # which asks for tables

    text = as_text(value)
    return str(json.loads(text)) if text.startswith('"') else text  # a number or a path needs no quotes


def is_missing(value: Any) -> bool:
    """NaN, and what pandas has for it."""
    if isinstance(value, float):
        return math.isnan(value)
    pandas = sys.modules.get("pandas")
    return pandas is not None and (value is pandas.NA or value is pandas.NaT)


def _of_numpy(value: Any, numpy: Any) -> Any:
    if isinstance(value, numpy.datetime64 | numpy.timedelta64) or value.dtype.kind in "mM":
        return value.astype(str).tolist()  # finer ones than microseconds would be numbers
    if value.dtype.kind == "f" and value.dtype.itemsize < 8:  # 0.1 is 0.1, with as many digits as it has
        return value.astype(str).astype(float).tolist()
    if value.dtype.kind == "c":
        return value.astype(str).tolist()
    return value.tolist()
