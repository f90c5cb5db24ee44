"""batch-agent export."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

from ...atomic_file import atomic_write
from ...core.agent_config import AgentConfig
from ...core.errors import SpecError
from ...core.results import AgentResult
from ...core.safe_text import safe_text
from ...data.export import csv_pieces, jsonl_pieces, to_parquet
from ...observe.checkpoint_results import recorded_result
from ...store.reader import CheckpointReader
from ..checkpoint import check_is_one, open_checkpoint

Format = Literal["jsonl", "csv", "parquet"]
Pieces = Callable[[Iterable[AgentResult]], Iterator[bytes]]
_PIECES: dict[Format, Pieces] = {"jsonl": jsonl_pieces, "csv": csv_pieces}
_BY_SUFFIX: dict[str, Format] = {
    "": "jsonl",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}


def export(
    folder: Path,
    *,
    out: Path | None = None,
    format: Format | None = None,
    schema: str | None = None,
    max_retries: int | None = None,
) -> int:
    """Writes a row for each agent that is done.

    Parameters
    ----------
    folder
        The checkpoint; of a run with a reduce, that of one stage (FOLDER/map or FOLDER/reduce).
    out
        The file to write; the standard output if not given. It is replaced when all is written, not before.
    format
        jsonl, csv or parquet; if not given, what the name of the file says.
    schema
        The run's own Pydantic model as module:Model, where it converts answers or fills them in.
    max_retries
        The run's own, if it was started from Python with another one than 3.
    """
    kind = format or _by_name(out)
    if kind == "parquet" and out is None:
        raise SpecError("A Parquet file is not for the standard output: name one with --out.")
    check_is_one(folder, "export")
    with open_checkpoint(folder, schema, max_retries) as (reader, rules):
        results = _Recorded(reader, rules)
        if out is None:
            if not _was_read(results, _PIECES[kind]):
                return 0
        elif kind == "parquet":
            to_parquet(results, out)
        else:
            with atomic_write(out) as file:
                file.writelines(_PIECES[kind](results))
    where = f" to {out}" if out is not None else ""
    left = f" {results.left_out} agents are not done, and left out." if results.left_out else ""
    print(f"{results.written} rows written{where}.{left}", file=sys.stderr)
    return 0


def _by_name(out: Path | None) -> Format:
    suffix = "" if out is None else out.suffix.lower()
    if suffix not in _BY_SUFFIX:
        raise SpecError(f"--out {str(out)!r} could be jsonl, csv or parquet: say which with --format.")
    return _BY_SUFFIX[suffix]


class _Recorded:
    """The results, one by one, with a count of those that there are not."""

    def __init__(self, reader: CheckpointReader, rules: AgentConfig) -> None:
        self._reader = reader
        self._rules = rules
        self.written = self.left_out = 0

    def __iter__(self) -> Iterator[AgentResult]:
        for agent, facts in self._reader.histories():
            result = recorded_result(self._rules, agent.key, facts)
            if result is None:
                self.left_out += 1
            else:
                self.written += 1
                yield result


def _was_read(results: _Recorded, pieces: Pieces) -> bool:
    """Writes to the standard output; False when its reader, such as `head`, has had enough."""
    try:
        written = pieces(results)
        sys.stdout.buffer.writelines(map(_safe, written) if sys.stdout.isatty() else written)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still in the buffer goes there
        return False
    return True


def _safe(piece: bytes) -> bytes:
    """For a terminal. A file or a pipe gets what the model said, to the last bit."""
    return safe_text(piece.decode(errors="replace").replace("\r\n", "\n")).encode()
