"""Export of results to tables, files and the HTML of a notebook. `Results` calls these functions by name."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from html import escape
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from ..atomic_file import atomic_write, temporary_path
from ..core.errors import SpecError
from ..core.json import dumps, loads
from ..core.messages import chat_tools
from ..core.results import AgentResult
from .column_types import MIXED, NULL, ColumnType, column_type, common_type
from .columns import RESULT_TABLE, TableLayout, table_row
from .optional_imports import require
from .parquet_writer import ParquetSpool
from .result_rows import as_row, cell, csv_lines, jsonable

_MAX_ROWS = 10
_MAX_COLUMNS = 12
_MAX_CELL_CHARS = 80
_HIDDEN = frozenset({"key", "text", "cached_tokens", "written_tokens", "lane"})
_STYLE = (
    "<style>.batch-agent {overflow-x: auto} .batch-agent td, .batch-agent th {text-align: left; vertical-align: top} "
    ".batch-agent th {white-space: nowrap} .batch-agent td {max-width: 24em; overflow-wrap: break-word}</style>"
)

Row = Mapping[str, Any]


class ExportTable:
    """Rows for export to a DataFrame, a file, or the HTML of a notebook. A row is a mapping by column."""

    def __init__(self, rows: Sequence[Row], layout: TableLayout) -> None:
        self._rows = rows
        self._layout = layout

    def to_pandas(self) -> Any:
        pandas = require("pandas", "to_pandas()", "pandas")
        return pandas.DataFrame(self._layout.columns(self._rows))

    def to_polars(self) -> Any:
        polars = require("polars", "to_polars()", "polars")
        columns = {name: _of_one_type(values) for name, values in self._layout.columns(self._rows).items()}
        return polars.DataFrame(columns, strict=False, infer_schema_length=None)

    def to_csv(self, path: str | Path) -> None:
        columns = self._layout.columns(self._rows)
        with atomic_write(Path(path).expanduser()) as file:
            file.write(csv_lines([list(columns), *zip(*columns.values(), strict=True)]))

    def to_html(self, summary: str, total: int) -> str:
        """The summary line and the rows, out of `total`. All values are escaped."""
        filled = (
            (name, values) for name, values in self._layout.columns(self._rows).items() if _is_shown(name, values)
        )
        columns = dict(islice(filled, _MAX_COLUMNS))
        head = "".join(f"<th>{escape(name)}</th>" for name in columns)
        body = "".join(f"<tr>{''.join(map(_shown, row))}</tr>" for row in zip(*columns.values(), strict=True))
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if self._rows else ""
        more = f"<p>and {total - len(self._rows):,} more</p>" if total > len(self._rows) else ""
        return f'<div class="batch-agent">{_STYLE}<p>{escape(summary)}</p>{table}{more}</div>'


def as_html(results: Sequence[AgentResult], summary: str) -> str:
    """The summary line and the first rows of the table."""
    return result_table(results[:_MAX_ROWS]).to_html(summary, len(results))


def result_table(results: Iterable[AgentResult]) -> ExportTable:
    """One row per result."""
    return ExportTable([table_row(result) for result in results], RESULT_TABLE)


def with_types_of(table: Any, like: Any) -> Any:
    """The pandas table in which columns `input.NAME` have the type of column NAME in `like`, where they can be
    converted."""
    pandas = require("pandas", "to_pandas()", "pandas")
    for name, wanted in like.dtypes.items():
        column = f"input.{name}"
        if column not in table or table[column].dtype == wanted:
            continue
        with suppress(ValueError, TypeError):
            is_number = pandas.api.types.is_numeric_dtype(wanted) and not pandas.api.types.is_bool_dtype(wanted)
            values = pandas.to_numeric(table[column]) if is_number else table[column]
            table[column] = values.astype(wanted)
    return table


def write_parquet_table(rows: Iterable[Row], layout: TableLayout, path: str | Path) -> None:
    """Writes rows, sorted by their column `index`. Raises SpecError."""
    require("duckdb", "to_parquet()")
    path = Path(path).expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        spool, lines = ParquetSpool(layout), temporary_path(path.with_name(f"{path.name}.rows.jsonl"))
        try:
            with lines.open("wb") as file:
                file.writelines(map(spool.line, rows))
            spool.write(lines, path)
        finally:
            lines.unlink(missing_ok=True)
    except (OSError, SpecError) as error:
        why = f"{error.strerror}." if isinstance(error, OSError) else error
        raise SpecError(f"{str(path)!r} cannot be written: {why}") from None


def to_parquet(results: Iterable[AgentResult], path: str | Path) -> None:
    write_parquet_table(map(table_row, results), RESULT_TABLE, path)


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
    """Lines of a JSONL file of conversations, in the fine-tuning format of OpenAI and others. A result without a
    conversation has no line."""
    for result in results:
        if result.transcript:
            tools = result.prompt.tools if result.prompt is not None else ()
            yield dumps({"messages": result.messages, **({"tools": chat_tools(tools)} if tools else {})}) + b"\n"


def csv_pieces(results: Iterable[AgentResult]) -> Iterator[bytes]:
    """Lines of a CSV file of results, with the header first. The columns are known only after the last result, so rows
    wait in a temporary file."""
    names: dict[str, None] = {}
    with TemporaryFile() as file:
        for result in results:
            row = {name: cell(value) for name, value in table_row(result).items()}
            names |= dict.fromkeys(row)
            file.write(dumps(row) + b"\n")
        file.seek(0)
        columns = RESULT_TABLE.order(names)
        yield csv_lines([columns])
        for line in file:
            waiting = loads(line)
            yield csv_lines([[waiting.get(name, "") for name in columns]])


def _is_shown(name: str, values: Sequence[Any]) -> bool:
    return name not in _HIDDEN and any(value is not None for value in values)


def _shown(value: Any) -> str:
    """A cell, cut at a word boundary."""
    text = str(cell(value))
    if len(text) <= _MAX_CELL_CHARS:
        return f"<td>{escape(text)}</td>"
    cut = text[:_MAX_CELL_CHARS]
    whole = cut if text[_MAX_CELL_CHARS].isspace() else (cut.rpartition(" ")[0] or cut)
    return f"<td>{escape(whole.rstrip())}…</td>"


__all__ = [
    "ExportTable",
    "as_html",
    "chat_pieces",
    "csv_pieces",
    "jsonl_pieces",
    "result_table",
    "to_chat_jsonl",
    "to_jsonl",
    "to_parquet",
    "with_types_of",
    "write_parquet_table",
]


def _of_one_type(values: list[Any]) -> list[Any]:
    """The values; if they have several types, each as JSON, as in a Parquet file."""
    type_: ColumnType = NULL
    for value in values:
        type_ = common_type(type_, column_type(value))
    if type_ != MIXED:
        return values
    return [None if value is None else dumps(jsonable(value)).decode() for value in values]
