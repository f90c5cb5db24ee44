"""A result as one row of the results file: plain data, which JSON can hold.

Lines of CSV.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any

from ..core.json import dumps
from ..core.results import AgentResult

_JSON = frozenset({str, int, bool, type(None)})


def as_row(result: AgentResult) -> dict[str, Any]:
    """A result as plain data."""
    error = result.error
    row = {
        "index": result.index,
        "key": result.key,
        "ok": result.ok,
        "input": result.input,
        "output": result.output,
        "error": {"kind": error.kind, "message": error.message, "retryable": error.retryable} if error else None,
        "turns": result.turns,
        "tool_calls": result.tool_calls,
        "usage": result.usage,
        "seconds": round(result.timing.total, 3),
    }
    if result.changes is not None:
        row["changes"] = result.changes
    if error is not None:
        row["text"] = result.text
    return {name: jsonable(value) for name, value in row.items()}


def jsonable(value: Any) -> Any:
    """As JSON has it; bytes that are no text in base64, numbers that are none as null."""
    if type(value) in _JSON:
        return value
    from pydantic_core import to_jsonable_python  # only results that are written somewhere come here

    try:
        return to_jsonable_python(value, fallback=_text, inf_nan_mode="null")
    except UnicodeEncodeError:  # a key with half of a surrogate pair
        return to_jsonable_python(_with_whole_keys(value), fallback=_text, inf_nan_mode="null", bytes_mode="base64")
    except UnicodeDecodeError:
        return to_jsonable_python(value, fallback=_text, inf_nan_mode="null", bytes_mode="base64")


def _with_whole_keys(value: Any) -> Any:
    if isinstance(value, dict):
        whole = {whole_text(key) if isinstance(key, str) else key: each for key, each in value.items()}
        return {key: _with_whole_keys(each) for key, each in whole.items()}
    if isinstance(value, list | tuple):
        return [_with_whole_keys(each) for each in value]
    return value


def whole_text(text: str) -> str:
    """Without halves of surrogate pairs."""
    return text.encode(errors="replace").decode()


def _text(value: Any) -> str:
    """Of an object of the user's, whose own may raise anything."""
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - a result is written whatever its input is
        return f"<{type(value).__name__}: {type(error).__name__} when its text was asked for>"


def csv_lines(rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([cell(value) for value in row] for row in rows)
    return text.getvalue().encode(errors="replace")


def cell(value: Any) -> Any:
    """Texts and numbers as they are, everything else as JSON; empty where there is none."""
    if value is None or (isinstance(value, float) and not isfinite(value)):
        return ""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return value
    plain = jsonable(value)
    return plain if isinstance(plain, str) else dumps(plain).decode()
