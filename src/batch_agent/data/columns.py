"""Columns of the result table: one for each field of the inputs and of the outputs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

from pydantic import RootModel

from ..core.fast_dataclass import dataclass
from ..core.results import AgentResult
from .result_rows import jsonable, named_fields, replace_lone_surrogates

_PLAIN_TYPES = frozenset({str, int, float, bool, type(None), datetime, date, time, timedelta, Decimal})
LEADING_COLUMNS = ("index", "key", "ok", "status", "finish")
EVALUATION_COLUMNS = ("model", "sample")
"""Columns only in tables of runs with `models=` and `samples=`, after the key."""
TRAILING_COLUMNS = (
    "error_kind", "error_message", "text", "turns", "tool_calls", "input_tokens", "cached_tokens", "written_tokens",
    "output_tokens", "lane", "cost", "seconds",
)  # fmt: skip


def table_row(result: AgentResult) -> dict[str, Any]:
    """Row with `input.NAME` for each field of the input and `output.NAME` for each field of the output; `input` and
    `output` for values without fields."""
    output = field_columns("output", result.output) if result.ok else {}
    return {**_agent_columns(result), **field_columns("input", result.input, by_alias=False), **output}


def narrow_row(result: AgentResult) -> dict[str, Any]:
    """Row with one column each for input and output, for a file that grows and cannot get new columns."""
    return {**_agent_columns(result), "input": _cell(result.input, by_alias=False), "output": _cell(result.output)}


def in_order(names: Iterable[str]) -> list[str]:
    """Columns in the order of the table: the agent, its input, its output, its statistics."""
    found = list(dict.fromkeys(names))
    inputs = [name for name in found if name == "input" or name.startswith("input.")] or ["input"]
    outputs = [name for name in found if name == "output" or name.startswith("output.")] or ["output"]
    scores = [name for name in found if name.startswith("score.")]
    evaluated = [name for name in EVALUATION_COLUMNS if name in found]
    index, key, *leading = LEADING_COLUMNS
    return [index, key, *evaluated, *leading, *inputs, *outputs, *scores, *TRAILING_COLUMNS]


@dataclass(frozen=True, slots=True)
class TableLayout:
    """Order of the columns of a table whose rows may have different columns."""

    order: Callable[[Iterable[str]], list[str]]

    def columns(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
        """Values of all rows, by column."""
        return {name: [row.get(name) for row in rows] for name in self.order(name for row in rows for name in row)}


RESULT_TABLE = TableLayout(in_order)


def _agent_columns(result: AgentResult) -> dict[str, Any]:
    error, usage = result.error, result.usage
    return {
        "index": result.index,
        "key": result.key,
        **({} if result.model is None else {"model": result.model}),
        **({} if result.sample is None else {"sample": result.sample}),
        "ok": result.ok,
        "status": result.status,
        "finish": result.finish,
        "error_kind": str(error.kind) if error else None,
        "error_message": error.message if error else None,
        "text": result.text if error else None,
        "turns": result.turns,
        "tool_calls": len(result.tool_calls),
        "input_tokens": usage.input,
        "cached_tokens": usage.cached,
        "written_tokens": usage.all_written,
        "output_tokens": usage.output,
        "lane": "+".join(usage.lanes),
        "cost": result.cost,
        "seconds": round(result.timing.total, 3),
        **{replace_lone_surrogates(f"score.{name}"): score for name, score in result.scores.items()},
    }


def field_columns(name: str, value: Any, *, by_alias: bool = True) -> dict[str, Any]:
    """`NAME.FIELD` for each field of the value; `NAME` for a value without fields. `by_alias`: as for `jsonable`."""
    parts = _fields(value, by_alias=by_alias)
    if not parts:
        return {name: _cell(value, by_alias=by_alias)}
    return {
        replace_lone_surrogates(f"{name}.{_cell(part)}"): _cell(each, by_alias=by_alias) for part, each in parts.items()
    }


def _fields(value: Any, *, by_alias: bool) -> Mapping[Any, Any]:
    if isinstance(value, RootModel):
        return _fields(value.root, by_alias=by_alias)
    return value if isinstance(value, Mapping) else named_fields(value, by_alias=by_alias)


def _cell(value: Any, *, by_alias: bool = True) -> Any:
    """Returns numbers, strings and dates unchanged, and everything else as JSON data."""
    if type(value) in _PLAIN_TYPES:
        return value
    if isinstance(value, Enum):
        return _cell(value.value)
    return jsonable(value, by_alias=by_alias)
