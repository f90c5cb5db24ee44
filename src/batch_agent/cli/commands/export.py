"""batch-agent export."""

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from ...atomic_file import atomic_write
from ...core.agent_config import AgentConfig
from ...core.errors import SpecError
from ...core.results import AgentResult
from ...data.table_export import chat_pieces, csv_pieces, jsonl_pieces, to_parquet
from ...observe.checkpoint_results import as_sent, recorded_result
from ...store.reader import CheckpointReader
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
    """Writes a row for each finished agent.

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
        results = _RecordedResults(reader, config)
        if kind == "chat":
            results = _RecordedResults(reader, as_sent(config), includes_failed=include_failed)
        if out is None:
            if not write_stdout(_PIECES[kind](results)):
                return 0
        elif kind == "parquet":
            to_parquet(results, out)
        else:
            with atomic_write(out) as file:
                file.writelines(_PIECES[kind](results))
    where = f" to {out}" if out is not None else ""
    skipped = f" Skipped {results.unfinished} unfinished agents." if results.unfinished else ""
    failed = f" Skipped {results.failed} failed agents: add --include-failed." if results.failed else ""
    print(f"Wrote {results.written} rows{where}.{skipped}{failed}", file=sys.stderr)
    return 0


def _format_of(out: Path | None) -> Format:
    suffix = "" if out is None else out.suffix.lower()
    if suffix not in _BY_SUFFIX:
        raise SpecError(f"--out {str(out)!r} has an unknown file type. Choose jsonl, csv or parquet with --format.")
    return _BY_SUFFIX[suffix]


class _RecordedResults:
    """Iterator of the results in a checkpoint, which also counts unfinished agents."""

    def __init__(self, reader: CheckpointReader, config: AgentConfig, *, includes_failed: bool = True) -> None:
        self._reader = reader
        self._config = config
        self._includes_failed = includes_failed
        self.written = self.unfinished = self.failed = 0

    def __iter__(self) -> Iterator[AgentResult]:
        for agent, facts in self._reader.histories():
            result = recorded_result(self._config, agent.key, facts)
            if result is None:
                self.unfinished += 1
            elif not result.ok and not self._includes_failed:
                self.failed += 1
            else:
                self.written += 1
                yield result
