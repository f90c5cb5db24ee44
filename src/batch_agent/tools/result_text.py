"""Results and errors of tools as text for the model.

Tables and arrays of data libraries are rendered in full, because their own `str` omits what does not fit a terminal.
"""

import csv
import io
import json
import math
import sys
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from datetime import date, time
from inspect import GEN_CREATED, getgeneratorstate
from types import GeneratorType
from typing import Any

from ..core.fast_dataclass import dataclass
from ..core.images import ImageRef, as_image
from ..media.image_files import identify

_MAX_PARTS = 100
"""The most items in a list of images and texts. A longer list is data."""


class NoData(Exception):
    """A value that describes data without holding it, such as a lazy query."""


Table = tuple[Sequence[str], Iterable[Sequence[Any]]]
"""The names of the columns, and the rows."""


def table_of(value: Any) -> Table | None:
    """Table of a data frame, a pandas Series, a pyarrow table or a structured NumPy array; None for other values.
    Raises NoData."""
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
    """CSV with a header. Missing values are empty; nested values are JSON."""
    names, rows = table
    if not names:
        return "(a table without columns)"
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue().removesuffix("\n")


def as_plain(value: Any) -> Any:
    """A value that JSON does not have, as lists, dicts, numbers and strings; a nested table as a list of records.
    Values of unknown types are rendered by `str`."""
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
    for name in ("to_pylist", "to_list", "tolist"):  # pyarrow, polars and pandas, and libraries that follow NumPy
        listed = getattr(value, name, None)
        if callable(listed) and not isinstance(value, type):
            return listed()
    if isinstance(value, Collection):  # a range, the values of a dict
        return list(value)
    pyarrow = sys.modules.get("pyarrow")
    return value.as_py() if pyarrow is not None and isinstance(value, pyarrow.Scalar) else str(value)


def _frame(value: Any, columns: Iterable[Any], rows: Iterable[tuple[Any, ...]]) -> Table:
    """Table of a pandas frame, with its index unless that only numbers the rows."""
    names = [_name(column) for column in columns]
    index = value.index
    if index.equals(sys.modules["pandas"].RangeIndex(len(index))):
        return names, rows
    own = [str(name) if name is not None else "index" for name in index.names]
    return [*own, *names], _with_index(index, index.nlevels > 1, rows)


def _with_index(index: Iterable[Any], is_deep: bool, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
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
    text = as_text(value)
    return str(json.loads(text)) if text.startswith('"') else text  # a number or a path needs no quotes


def is_missing(value: Any) -> bool:
    """NaN, or a missing value of pandas."""
    if isinstance(value, float):
        return math.isnan(value)
    pandas = sys.modules.get("pandas")
    return pandas is not None and (value is pandas.NA or value is pandas.NaT)


def _of_numpy(value: Any, numpy: Any) -> Any:
    if isinstance(value, numpy.datetime64 | numpy.timedelta64) or value.dtype.kind in "mM":
        return value.astype(str).tolist()  # those finer than microseconds would become numbers
    if value.dtype.kind == "f" and value.dtype.itemsize < 8:  # 0.1 is 0.1, with as many digits as it has
        return value.astype(str).astype(float).tolist()
    if value.dtype.kind == "c":
        return value.astype(str).tolist()
    return value.tolist()


class PlainToolError(Exception):
    """Error whose message is shown to the model as is, without its type."""


class ToolTimeout(PlainToolError):
    """An execution exceeded its timeout."""


@dataclass(frozen=True, slots=True)
class RenderedResult:
    """What a tool returned, for the model."""

    text: str
    images: tuple[ImageRef, ...] = ()
    is_whole: bool = True
    """False: the beginning of an iterator that has more."""


@dataclass(frozen=True, slots=True)
class ReadValues:
    """Values read from an iterator, which may be endless."""

    values: Any
    is_whole: bool


def read(values: Iterator[Any], max_chars: int) -> ReadValues:
    """Reads until the text of the values is longer than `max_chars`. Raises what the iterator raises."""
    found, size = [], 0
    for each in values:
        value = _read_parts(each, max_chars).values
        found.append(value)
        size += len(as_text(value)) + 1  # a comma
        if size > max_chars:
            if isinstance(values, Generator):
                values.close()
            return ReadValues(found, False)
    return ReadValues(found, True)


async def read_async(values: AsyncIterator[Any], max_chars: int) -> ReadValues:
    """As `read`."""
    found, size = [], 0
    async for each in values:
        value = _read_parts(each, max_chars).values
        found.append(value)
        size += len(as_text(value)) + 1
        if size > max_chars:
            if isinstance(values, AsyncGenerator):
                await values.aclose()
            return ReadValues(found, False)
    return ReadValues(found, True)


def as_output(value: Any, max_chars: int) -> RenderedResult:
    """Text and images of a result: an image, or a list of images and texts; everything else is text. Reads files, and
    iterators up to `max_chars`. Raises what an iterator raises, and ValueError for an image that cannot be read."""
    if isinstance(value, str):
        return RenderedResult(value)
    found = value if isinstance(value, ReadValues) else _read_parts(value, max_chars)
    if found.values is not value:
        return RenderedResult(as_text(found.values), is_whole=found.is_whole)
    parts = value if isinstance(value, list | tuple) else [value]
    images = [as_image(part) for part in parts] if len(parts) <= _MAX_PARTS else []
    is_mixed = any(images) and all(image or isinstance(part, str) for image, part in zip(images, parts, strict=True))
    if not is_mixed:
        return RenderedResult(as_text(value))
    identified = tuple(identify(image) for image in images if image is not None)
    texts = [part for part in parts if isinstance(part, str)]
    return RenderedResult("\n".join([*texts, *(f"[{image.label}]" for image in identified)]), identified)


def _read_parts(value: Any, max_chars: int) -> ReadValues:
    """The value with the iterators in its lists and dicts read, as `read` does; itself if it holds none."""
    if not _holds_iterators(value):
        return ReadValues(value, True)
    if isinstance(value, Iterator):
        return read(value, max_chars)
    parts = [_read_parts(each, max_chars) for each in (value.values() if isinstance(value, dict) else value)]
    values = [part.values for part in parts]
    is_whole = all(part.is_whole for part in parts)
    return ReadValues(dict(zip(value, values, strict=True)) if isinstance(value, dict) else values, is_whole)


def _holds_iterators(value: Any) -> bool:
    """Whether a list or a dict holds an iterator, at any depth. A value that contains itself is looked at once."""
    waiting, seen = [value], set()
    while waiting:
        each = waiting.pop()
        kind = type(each)
        if kind in _LEAVES:
            continue
        if isinstance(each, Iterator):
            return True
        if kind in (dict, list, tuple) and id(each) not in seen:
            seen.add(id(each))
            waiting.extend(each.values() if kind is dict else each)
    return False


_LEAVES = frozenset({str, int, float, bool, type(None)})


def as_text(value: Any) -> str:
    """Text of a result. Rendering may run code of the tool's, and block."""
    if isinstance(value, str):
        return value
    if value is None:
        return "done"
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return f"[{len(value)} bytes of binary data]"
    if (table := table_of(value)) is not None:
        return as_csv(table)
    if isinstance(value, Iterator):
        value = list(value)  # what it raises is the error of the tool, and it can be read only once
    from pydantic_core import PydanticSerializationError, to_json

    try:
        return to_json(value, fallback=as_plain).decode()
    except (PydanticSerializationError, ValueError, TypeError):  # such as nested bytes that are not text
        return _json_by_parts(value)


def _json_by_parts(value: Any) -> str:
    try:
        return json.dumps(_jsonable(value), ensure_ascii=False)
    except (RecursionError, ValueError):  # the value contains itself
        return str(value)


def _jsonable(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if is_missing(value):
        return None
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else as_text(key): _jsonable(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_jsonable(part) for part in value]
    if isinstance(value, bytes):
        return as_text(value)
    if isinstance(value, GeneratorType) and getgeneratorstate(value) != GEN_CREATED:
        raise RuntimeError("a generator in the result raised, or gave what JSON does not have: return a list")
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        return to_jsonable_python(value, fallback=as_plain)
    except (PydanticSerializationError, ValueError, TypeError):
        plain = as_plain(value)
        return plain if isinstance(plain, str) else _jsonable(plain)


def describe_error(error: BaseException) -> str:
    """Type and message of an error; a traceback does not help a model."""
    if isinstance(error, PlainToolError):
        return str(error)
    try:
        return f"{type(error).__name__}: {error}"
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - the error is the tool's own, and so is its __str__
        return type(error).__name__


def replace_surrogates(text: str) -> str:
    """`text` without lone surrogates, such as those in undecodable file names, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text
