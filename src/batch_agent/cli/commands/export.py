"""batch-agent export."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from ...atomic_file import atomic_write
from ...core.errors import SpecError
from ...core.results import AgentResult, AgentStatus
from ...data.table_export import chat_pieces, csv_pieces, jsonl_pieces, to_parquet
from ...observe.checkpoint_results import as_sent
from ...observe.text.formatting import plural, status_counts
from ...run.checkpoint_table import CheckpointTable
from ..checkpoint import check_is_one, open_checkpoint
from ..stdout import write_stdout

Format = Literal["jsonl", "csv", "parquet", "chat"]
Pieces = Callable[[Iterable[AgentResult]], Iterator[bytes]]
_PIECES: dict[Format, Pieces] = {"jsonl": jsonl_pieces, "csv": csv_pieces, "chat": chat_pieces}
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
    include_failed: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Writes a row for each input: its answer or its error, and its status.

    Parameters
    ----------
    folder
        Checkpoint directory. For a run with a reduce, that of one stage: FOLDER/map or FOLDER/reduce.
    out
        File to write. By default, standard output. It is replaced atomically, after all rows are written.
    format
        jsonl, csv or parquet; by default, determined by the file name. chat: conversations as JSONL for fine-tuning.
    schema
        The run's Pydantic model as module:Model, if it converts answers or fills in defaults.
    max_retries
        The run's value, if it was started from Python with a value other than 3.
    include_failed
        With --format chat: write the conversations of failed agents too.
    """
    kind = format or _format_of(out)
    if kind == "parquet" and out is None:
        raise SpecError("A Parquet file cannot be written to standard output. Choose a file with --out.")
    if include_failed and kind != "chat":
        raise SpecError("--include-failed is for --format chat. Other formats have a row for failed agents too.")
    check_is_one(folder, "export")
    with open_checkpoint(folder, schema, max_retries) as (reader, config):
        results = _Rows(CheckpointTable(folder, reader, as_sent(config) if kind == "chat" else config))
        if kind == "chat":
            results.wanted = ("answered", "failed") if include_failed else ("answered",)
        if out is None:
            if not write_stdout(_PIECES[kind](results)):
                return 0
        elif kind == "parquet":
            to_parquet(results, out)
        else:
            with atomic_write(out) as file:
                file.writelines(_PIECES[kind](results))
    where = f" to {out}" if out is not None else ""
    print(
        f"Wrote {plural(results.statuses.total(), 'row')}{where}: {status_counts(results.statuses)}."
        f"{_skipped(results.skipped)}",
        file=sys.stderr,
    )
    return 0


def _format_of(out: Path | None) -> Format:
    suffix = "" if out is None else out.suffix.lower()
    if suffix not in _BY_SUFFIX:
        raise SpecError(f"--out {str(out)!r} has an unknown file type. Choose jsonl, csv or parquet with --format.")
    return _BY_SUFFIX[suffix]


class _Rows:
    """Iterator of the results in a checkpoint, which also counts them by status."""

    def __init__(self, table: CheckpointTable) -> None:
        self._table = table
        self.wanted: Sequence[AgentStatus] | None = None
        """The statuses of the rows; None: all."""
        self.statuses: Counter[AgentStatus] = Counter()
        self.skipped: Counter[AgentStatus] = Counter()

    def __iter__(self) -> Iterator[AgentResult]:
        for result in self._table.results():
            if self.wanted is not None and result.status not in self.wanted:
                self.skipped[result.status] += 1
                continue
            self.statuses[result.status] += 1
            yield result


def _skipped(statuses: Counter[AgentStatus]) -> str:
    if not statuses:
        return ""
    advice = "; --include-failed adds those that failed" if statuses["failed"] else ""
    return f" Skipped {plural(statuses.total(), 'agent')} without an answer ({status_counts(statuses)}){advice}."
