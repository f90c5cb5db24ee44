"""Results as a table: a column for each field of the inputs and of the answers."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

from pydantic import BaseModel, RootModel

from ..core.results import AgentResult
from .result_rows import jsonable, whole_text

_AS_THEY_ARE = frozenset({str, int, float, bool, type(None), datetime, date, time, timedelta, Decimal})
BEFORE = ("index", "key", "ok")
AFTER = (
    "error_kind", "error_message", "text", "turns", "tool_calls", "input_tokens", "cached_tokens", "output_tokens",
    "seconds",
)  # fmt: skip


def table_row(result: AgentResult) -> dict[str, Any]:
    """With `input.NAME` for each field of the input and `output.NAME` for each of the answer; `input` and `output` for
    what has no fields."""
    answer = _spread("output", result.output) if result.ok else {}
    return {**_of_agent(result), **_spread("input", result.input), **answer}


def narrow_row(result: AgentResult) -> dict[str, Any]:
    """The same with the input and the answer in one column each: for a file that grows, and cannot get new columns."""
    return {**_of_agent(result), "input": _cell(result.input), "output": _cell(result.output)}


NARROW = (*BEFORE, "input", "output", *AFTER)


def in_order(names: Iterable[str]) -> list[str]:
    """The columns of a table: who it was, the input, the answer, and how it went."""
    found = list(dict.fromkeys(names))
    inputs = [name for name in found if name == "input" or name.startswith("input.")] or ["input"]
    outputs = [name for name in found if name == "output" or name.startswith("output.")] or ["output"]
    return [*BEFORE, *inputs, *outputs, *AFTER]


def columns_of(results: Iterable[AgentResult]) -> dict[str, list[Any]]:
    """All results, by column."""
    rows = [table_row(result) for result in results]
    return {name: [row.get(name) for row in rows] for name in in_order(name for row in rows for name in row)}


def _of_agent(result: AgentResult) -> dict[str, Any]:
    error, usage = result.error, result.usage
    return {
        "index": result.index,
        "key": result.key,
        "ok": result.ok,
        "error_kind": str(error.kind) if error else None,
        "error_message": error.message if error else None,
        "text": result.text if error else None,
        "turns": result.turns,
        "tool_calls": len(result.tool_calls),
        "input_tokens": usage.input,
        "cached_tokens": usage.cached,
        "output_tokens": usage.output,
        "seconds": round(result.timing.total, 3),
    }


def _spread(name: str, value: Any) -> dict[str, Any]:
    parts = _fields(value)
    if not parts:
        return {name: _cell(value)}
    return {whole_text(f"{name}.{part}"): _cell(each) for part, each in parts.items()}


def _fields(value: Any) -> Mapping[Any, Any]:
    if isinstance(value, RootModel):
        return _fields(value.root)
    if isinstance(value, BaseModel):
        return dict(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return value if isinstance(value, Mapping) else {}


def _cell(value: Any) -> Any:
    """Numbers, texts and dates as they are; everything else as JSON has it."""
    if type(value) in _AS_THEY_ARE:
        return value
    if isinstance(value, Enum):
        return _cell(value.value)
    return jsonable(value)
