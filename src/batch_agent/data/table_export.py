"""Export of results to tables, files and the HTML of a notebook. `Results` calls these functions by name."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any

from ..atomic_file import atomic_write, temporary_path
from ..core.errors import SpecError
from ..core.json import dumps
from ..core.messages import chat_tools
from ..core.results import AgentResult
from .column_types import MIXED, NULL, ColumnType, column_type, common_type
from .columns import NARROW_COLUMNS, columns_of, narrow_row
from .optional_imports import require
from .parquet_writer import ParquetSpool
from .result_rows import as_row, cell, csv_lines, jsonable

_MAX_ROWS = 10
_MAX_COLUMNS = 12
_MAX_CELL_CHARS = 80
_HIDDEN = frozenset({"key", "text", "cached_tokens"})
_STYLE = (
    "<style>.batch-agent td, .batch-agent th "
    "{text-align: left; vertical-align: top; max-width: 24em; overflow-wrap: anywhere}</style>"
)


def as_html(results: Sequence[AgentResult], summary: str) -> str:
    """The summary line and the first rows of the table. All values are escaped."""
    rows = results[:_MAX_ROWS]
    filled = ((name, values) for name, values in columns_of(rows).items() if _is_shown(name, values))
    columns = dict(islice(filled, _MAX_COLUMNS))
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(map(_shown, row))}</tr>" for row in zip(*columns.values(), strict=True))
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if rows else ""
    more = f"<p>and {len(results) - len(rows):,} more</p>" if len(results) > len(rows) else ""
    return f'<div class="batch-agent">{_STYLE}<p>{escape(summary)}</p>{table}{more}</div>'


def _is_shown(name: str, values: Sequence[Any]) -> bool:
    return name not in _HIDDEN and any(value is not None for value in values)


def _shown(value: Any) -> str:
    text = str(cell(value))
    short = text if len(text) <= _MAX_CELL_CHARS else f"{text[:_MAX_CELL_CHARS]}…"
    return f"<td>{escape(short)}</td>"


__all__ = [
    "as_html",
    "chat_pieces",
    "csv_pieces",
    "jsonl_pieces",
    "to_chat_jsonl",
    "to_csv",
    "to_jsonl",
    "to_pandas",
    "to_parquet",
    "to_polars",
]


def to_pandas(results: Sequence[AgentResult]) -> Any:
    pandas = require("pandas", "to_pandas()", "pandas")
    return pandas.DataFrame(columns_of(results))


def to_polars(results: Sequence[AgentResult]) -> Any:
    polars = require("polars", "to_polars()", "polars")
    columns = {name: _of_one_type(values) for name, values in columns_of(results).items()}
    return polars.DataFrame(columns, strict=False, infer_schema_length=None)


def to_parquet(results: Iterable[AgentResult], path: str | Path) -> None:
    require("duckdb", "to_parquet()")
    path = Path(path).expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        spool, lines = ParquetSpool(), temporary_path(path.with_name(f"{path.name}.rows.jsonl"))
        try:
            with lines.open("wb") as file:
                file.writelines(map(spool.line, results))
            spool.write(lines, path)
        finally:
            lines.unlink(missing_ok=True)
    except (OSError, SpecError) as error:
        why = f"{error.strerror}." if isinstance(error, OSError) else error
        raise SpecError(f"{str(path)!r} cannot be written: {why}") from None


def to_jsonl(results: Iterable[AgentResult], path: str | Path) -> None:
    with atomic_write(Path(path).expanduser()) as file:
        file.writelines(jsonl_pieces(results))


def jsonl_pieces(results: Iterable[AgentResult]) -> Iterator[bytes]:
    """Lines of a JSONL file of results."""
    return (dumps(as_row(result)) + b"\n" for result in results)


def to_chat_jsonl(results: Iterable[AgentResult], path: str | Path, *, include_failed: bool) -> None:
    with atomic_write(Path(path).expanduser()) as file:
        file.writelines(chat_pieces(result for result in results if result.ok or include_failed))


def chat_pieces(results: Iterable[AgentResult]) -> Iterator[bytes]:
    """Lines of a JSONL file of conversations, in the format in which OpenAI and others fine-tune. A result without a
    conversation has no line."""
    for result in results:
        if result.transcript:
            tools = result.prompt.tools if result.prompt is not None else ()
            yield dumps({"messages": result.messages, **({"tools": chat_tools(tools)} if tools else {})}) + b"\n"


def csv_pieces(results: Iterable[AgentResult]) -> Iterator[bytes]:
    """Lines of a CSV file of results, with the header first."""
    yield csv_lines([NARROW_COLUMNS])
    for result in results:
        row = narrow_row(result)
        yield csv_lines([[row.get(name) for name in NARROW_COLUMNS]])


def to_csv(results: Sequence[AgentResult], path: str | Path) -> None:
    columns = columns_of(results)
    with atomic_write(Path(path).expanduser()) as file:
        file.write(csv_lines([list(columns), *zip(*columns.values(), strict=True)]))


def _of_one_type(values: list[Any]) -> list[Any]:
    """The values; if they have several types, each as JSON, as in a Parquet file."""
    type_: ColumnType = NULL
    for value in values:
        type_ = common_type(type_, column_type(value))
    if type_ != MIXED:
        return values
    return [None if value is None else dumps(jsonable(value)).decode() for value in values]
