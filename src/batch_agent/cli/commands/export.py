"""batch-agent export."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from ...atomic_file import atomic_write
from ...core.agent_config import AgentConfig
from ...core.errors import SpecError
from ...core.results import AgentResult
from ...core.safe_text import safe_text
from ...data.table_export import csv_pieces, jsonl_pieces, to_parquet
from ...observe.checkpoint_results import recorded_result
from ...plan.row_keys import row_key
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
    """Writes a row for each finished agent.

    Parameters
    ----------
    folder
        Checkpoint directory. For a run with a reduce, that of one stage: FOLDER/map or FOLDER/reduce.
    out
        File to write. By default, standard output. It is replaced atomically, after all rows are written.
    format
        jsonl, csv or parquet. By default, determined by the file name.
    schema
        The run's Pydantic model as module:Model, if it converts answers or fills in defaults.
    max_retries
        The run's value, if it was started from Python with a value other than 3.
    """
    kind = format or _format_of(out)
    if kind == "parquet" and out is None:
        raise SpecError("A Parquet file cannot be written to standard output. Choose a file with --out.")
    check_is_one(folder, "export")
    with open_checkpoint(folder, schema, max_retries) as (reader, config):
        results = _RecordedResults(reader, config)
        if out is None:
            if not _write_to_stdout(results, _PIECES[kind]):
                return 0
        elif kind == "parquet":
            to_parquet(results, out)
        else:
            with atomic_write(out) as file:
                file.writelines(_PIECES[kind](results))
    where = f" to {out}" if out is not None else ""
    skipped = f" Skipped {results.unfinished} unfinished agents." if results.unfinished else ""
    print(f"Wrote {results.written} rows{where}.{skipped}", file=sys.stderr)
    return 0


def _format_of(out: Path | None) -> Format:
    suffix = "" if out is None else out.suffix.lower()
    if suffix not in _BY_SUFFIX:
        raise SpecError(f"--out {str(out)!r} has an unknown file type. Choose jsonl, csv or parquet with --format.")
    return _BY_SUFFIX[suffix]


class _RecordedResults:
    """Iterator of the results in a checkpoint, which also counts unfinished agents."""

    def __init__(self, reader: CheckpointReader, config: AgentConfig) -> None:
        self._reader = reader
        self._config = config
        self.written = self.unfinished = 0

    def __iter__(self) -> Iterator[AgentResult]:
        for agent, facts in self._reader.histories():
            result = recorded_result(self._config, agent.key, facts)
            if result is None:
                self.unfinished += 1
            else:
                self.written += 1
                yield replace(result, key=row_key(result.key))


def _write_to_stdout(results: _RecordedResults, pieces: Pieces) -> bool:
    """Writes to standard output. Returns False if its reader, such as `head`, closed the pipe."""
    try:
        written = pieces(results)
        sys.stdout.buffer.writelines(map(_safe, written) if sys.stdout.isatty() else written)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # flushing at exit must not fail
        return False
    return True


def _safe(piece: bytes) -> bytes:
    """A piece without control characters, for a terminal. Files and pipes get the exact output."""
    return safe_text(piece.decode(errors="replace").replace("\r\n", "\n")).encode()
