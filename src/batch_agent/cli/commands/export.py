"""batch-agent export."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from ...atomic_file import atomic_write
from ...core.errors import SpecError
from ...core.json import dumps
from ...core.results import AgentResult, AgentStatus
from ...data.columns import TableLayout
from ...data.table_export import chat_pieces, csv_pieces, jsonl_pieces, to_parquet, write_parquet_table
from ...observe.checkpoint_results import as_sent
from ...observe.text.text_format import plural, status_counts
from ...rollouts.formats import TRL_COLUMNS, RolloutFormat, rollout_rows
from ...run.checkpoint_table import CheckpointTable
from ..checkpoint import open_checkpoint
from ..object_files import OptionalLocation, open_to_write
from ..run_address import OpenRun, RunLocation, open_run
from ..stdout import write_stdout

Format = Literal["jsonl", "csv", "parquet", "chat", "atif", "trl", "verifiers"]
Pieces = Callable[[Iterable[AgentResult]], Iterator[bytes]]
_PIECES: dict[str, Pieces] = {"jsonl": jsonl_pieces, "csv": csv_pieces, "chat": chat_pieces}
_BY_SUFFIX: dict[str, Format] = {
    "": "jsonl",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}


def export(
    folder: RunLocation,
    *,
    run: str | None = None,
    out: OptionalLocation = None,
    format: Format | None = None,
    schema: str | None = None,
    max_retries: int | None = None,
    include_failed: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Writes a row for each input: its answer or its error, and its status.

    Parameters
    ----------
    folder
        Checkpoint directory, also in an object store, or the URL of a Redis server. For a run with a reduce, the
        directory of one stage: FOLDER/map or FOLDER/reduce.
    run
        Name of the run, if FOLDER is the URL of a Redis server.
    out
        File to write, also in an object store. By default, standard output. It is replaced atomically, after all rows
        are written.
    format
        jsonl, csv or parquet; by default, determined by the file name. chat: conversations as JSONL for fine-tuning.
        atif, trl and verifiers: token ids of a run with tokens=True, as JSONL; trl also as Parquet.
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
    with open_run(folder, run) as source, open_to_write(out) as path:
        source.check_is_one("export")
        retries = source.max_retries() if max_retries is None else max_retries
        if kind in ("atif", "trl", "verifiers"):
            return _export_rollouts(source, path, kind, schema, retries, shown=out)
        statuses: Sequence[AgentStatus] = ("answered", "failed") if include_failed else ("answered",)
        rows = _export_rows(source.folder, path, kind, schema, retries, statuses)
        if rows is None:
            return 0
    where = f" to {out}" if out is not None else ""
    print(
        f"Wrote {plural(rows.statuses.total(), 'row')}{where}: {status_counts(rows.statuses)}.{_skipped(rows.skipped)}",
        file=sys.stderr,
    )
    return 0


def _export_rows(
    folder: Path,
    out: Path | None,
    kind: str,
    schema: str | None,
    max_retries: int | None,
    chat_statuses: Sequence[AgentStatus],
) -> "_Rows | None":
    """Writes the rows, and returns them with their counts; None if standard output was closed."""
    with open_checkpoint(folder, schema, max_retries) as (reader, config):
        results = _Rows(CheckpointTable(folder, reader, as_sent(config) if kind == "chat" else config))
        if kind == "chat":
            results.wanted = chat_statuses
        if out is None:
            if not write_stdout(_PIECES[kind](results)):
                return None
        elif kind == "parquet":
            to_parquet(results, out)
        else:
            with atomic_write(out) as file:
                file.writelines(_PIECES[kind](results))
    return results


def _export_rollouts(
    source: OpenRun,
    out: Path | None,
    kind: RolloutFormat,
    schema: str | None,
    max_retries: int | None,
    shown: Path | str | None,
) -> int:
    is_parquet = out is not None and out.suffix.lower() == ".parquet"
    if is_parquet and kind != "trl":
        raise SpecError(f"--format {kind} is written as JSONL; --format trl also as Parquet.")
    with open_checkpoint(source.folder, schema, max_retries) as (reader, config):
        rollouts = _Rollouts(CheckpointTable(source.folder, reader, as_sent(config)), kind)
        lines = (dumps(row) + b"\n" for row in rollouts)
        if out is None:
            if not write_stdout(lines):
                return 0
        elif is_parquet:
            write_parquet_table(rollouts, TableLayout(_in_trl_order), out)
        else:
            with atomic_write(out) as file:
                file.writelines(lines)
    if not rollouts.agents:
        raise SpecError(f"{source.title!r} has no token ids. They are kept by a run with tokens=True (--tokens).")
    print(rollouts.summary(shown), file=sys.stderr)
    return 0


def _in_trl_order(names: Iterable[str]) -> list[str]:
    found = set(names)
    return [name for name in TRL_COLUMNS if name in found]


class _Rollouts:
    """Iterator over rollout rows that counts them."""

    def __init__(self, table: CheckpointTable, kind: RolloutFormat) -> None:
        self._table = table
        self._kind = kind
        self.agents = self.rows = self.breaks = self.broken = self.without = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for result, rollout in self._table.rollouts():
            if rollout is None:
                self.without += 1
                continue
            self.agents += 1
            self.breaks += len(rollout.breaks)
            self.broken += bool(rollout.breaks)
            for row in rollout_rows(result, rollout, self._kind):
                self.rows += 1
                yield row

    def summary(self, out: Path | str | None) -> str:
        where = f" to {out}" if out is not None else ""
        text = f"Wrote {plural(self.rows, 'row')}{where}: the tokens of {plural(self.agents, 'agent')}."
        if self.breaks:
            where = plural(self.broken, "agent")
            text += f" {plural(self.breaks, 'prompt')} of {where} did not continue the turn before."
        return text + (f" {plural(self.without, 'agent')} without tokens." if self.without else "")


def _format_of(out: Path | str | None) -> Format:
    suffix = "" if out is None else Path(out).suffix.lower()
    if suffix not in _BY_SUFFIX:
        raise SpecError(f"--out {str(out)!r} has an unknown file type. Choose jsonl, csv or parquet with --format.")
    return _BY_SUFFIX[suffix]


class _Rows:
    """Iterator over the results in a checkpoint that counts them by status."""

    def __init__(self, table: CheckpointTable) -> None:
        self._table = table
        self.wanted: Sequence[AgentStatus] | None = None
        """Statuses of the rows to write; None: all."""
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
