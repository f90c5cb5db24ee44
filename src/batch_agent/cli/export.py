"""batch-agent export."""

import csv
import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

import orjson

from ..core.rules import Rules
from ..observe.recorded import recorded_result
from ..store.reader import CheckpointReader
from .data import as_row
from .recorded import open_recorded
from .replacing import replacing
from .stages import check_is_one

Format = Literal["jsonl", "csv"]
_COLUMNS = ("index", "key", "ok", "input", "output", "text", "error", "turns", "tool_calls", "usage", "seconds")


def export(
    folder: Path,
    *,
    out: Path | None = None,
    format: Format | None = None,
    schema: str | None = None,
    max_retries: int | None = None,
) -> int:
    """Write what a checkpoint holds as a table: one row per agent that is done, in the order of the inputs.

    Rows are those of `batch-agent run`, with answers as plain JSON. Works while the run goes on.

    Parameters
    ----------
    folder
        The checkpoint; of a run with a reduce, that of one stage (FOLDER/map or FOLDER/reduce).
    out
        The file to write; the standard output if not given. It is replaced when all is written, not before.
    format
        jsonl or csv; if not given, what the name of the file says.
    schema
        The run's own Pydantic model as module:Model, where it converts answers or fills them in; if not given, the JSON
        schema in the checkpoint.
    max_retries
        The run's own, if it was started from Python with another one than 3.
    """
    kind = format or ("csv" if out is not None and out.suffix == ".csv" else "jsonl")
    check_is_one(folder, "export")
    with open_recorded(folder, schema, max_retries) as (reader, rules):
        rows = _Rows(reader, rules)
        if out is None:
            if not _was_read(rows, kind):
                return 0
        else:
            with replacing(out) as file:
                _WRITERS[kind](rows, file)
    where = f" to {out}" if out is not None else ""
    left = f" {rows.left_out} agents are not done, and left out." if rows.left_out else ""
    print(f"{rows.written} rows written{where}.{left}", file=sys.stderr)
    return 0


class _Rows:
    """The rows, one by one, with a count of those that there are not."""

    def __init__(self, reader: CheckpointReader, rules: Rules) -> None:
        self._reader = reader
        self._rules = rules
        self.written = self.left_out = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for agent, facts in self._reader.stories():
            result = recorded_result(self._rules, agent.key, facts)
            if result is None:
                self.left_out += 1
            else:
                self.written += 1
                yield as_row(result)


def _was_read(rows: _Rows, kind: Format) -> bool:
    """Writes to the standard output; False when its reader, such as `head`, has had enough."""
    try:
        _WRITERS[kind](rows, sys.stdout.buffer)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still in the buffer goes there
        return False
    return True


def _jsonl(rows: _Rows, file: BinaryIO) -> None:
    for row in rows:
        file.write(orjson.dumps(row) + b"\n")


def _csv(rows: _Rows, file: BinaryIO) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    try:
        writer = csv.DictWriter(text, _COLUMNS, restval="")
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    finally:
        text.detach()


def _cell(value: Any) -> Any:
    """Texts and numbers as they are, everything else as JSON."""
    if value is None:
        return ""
    is_plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    return value if is_plain else orjson.dumps(value).decode()


_WRITERS: dict[Format, Callable[[_Rows, BinaryIO], None]] = {"jsonl": _jsonl, "csv": _csv}
