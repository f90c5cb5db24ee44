"""A checkpoint and the rules that its agents followed, as the commands read them.

Checkpoints of runs with stages: a folder for each, in the folder of the run.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..core.agent_config import AgentConfig
from ..core.errors import PlanMismatch, StoreError
from ..core.validation import at_least
from ..observe.checkpoint_results import recorded_rules
from ..observe.event_log import FILE
from ..observe.report.html import REPORT
from ..observe.report.lock_probe import is_held
from ..store.reader import CheckpointReader
from .import_by_name import load_schema
from .saved_command import read_command, remote_run_id


@contextmanager
def open_checkpoint(
    folder: Path, schema: str | None, max_retries: int | None
) -> Iterator[tuple[CheckpointReader, AgentConfig]]:
    """Raises StoreError for what is no checkpoint, SpecError for a schema that is none."""
    if (run := remote_run_id(folder)) is not None:
        raise StoreError(
            f"The progress of the run in {str(folder)!r} is on a server, as that of run {run!r}: it cannot be read "
            "from there. What its agents answered is in the results; what they did, in the report."
        )
    if max_retries is not None:
        at_least("--max-retries", max_retries, 0)
    with CheckpointReader(folder) as reader:
        own: Any = load_schema(schema) if schema else None
        yield reader, recorded_rules(reader.plan(), own, _max_retries(folder) if max_retries is None else max_retries)


def _max_retries(folder: Path) -> int | None:
    """As the command said. The command of a stage is that of its run."""
    for place in (folder, folder.absolute().parent):
        with suppress(StoreError):  # made from Python
            retries: int = read_command(place)[1]["max_retries"]
            return retries
    return None


MAP, REDUCE = "map", "reduce"
_FACTS = "run.sqlite3"
_LEFT = (_FACTS, f"{_FACTS}-wal", f"{_FACTS}-shm", "run.lock", "command.json", "forecast.json", FILE, REPORT)


def checkpoint_of(out: Path) -> Path:
    """Of a run that writes its results there, if nothing else was said."""
    return out.with_name(f"{out.name}.checkpoint")


def checkpoints_in(folder: Path) -> list[Path]:
    """Its own, and those of its stages. Of a folder with neither, itself: whoever reads it says what is wrong."""
    own = [folder] if (folder / _FACTS).exists() else []
    return [*own, *sorted(facts.parent for facts in folder.glob(f"*/{_FACTS}"))] or [folder]


def check_is_one(folder: Path, what: str) -> None:
    """Raises StoreError for a folder that has only stages, of which `what` can be done to one at a time."""
    places = checkpoints_in(folder)
    if folder not in places:
        raise StoreError(
            f"The run in {str(folder)!r} has stages. Say which one to {what}: {' or '.join(map(str, places))}"
        )


def delete_checkpoint(folder: Path) -> None:
    """Removes what a run has left there, and nothing else: people put checkpoints where they have other things. Raises
    StoreError for a run that goes on."""
    if is_held(folder):
        raise StoreError(f"Another run is using the checkpoint {str(folder)!r}. Wait until it ends.")
    for place in (folder / MAP, folder / REDUCE, folder):
        for file in (place / name for name in _LEFT):
            try:
                file.unlink()
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise StoreError(f"{str(file)!r} cannot be forgotten: {error.strerror}.") from error
        with suppress(OSError):  # it is not there, or something else is in it
            place.rmdir()


def check_kind(folder: Path, *, is_reduced: bool) -> None:
    """Raises PlanMismatch where all progress is that of a run without a reduce, and this is one with it, or the other
    way round: everything would be asked, and paid for, again."""
    own, other = (folder / MAP, folder) if is_reduced else (folder, folder / MAP)
    if _has_agents(other) and not _has_agents(own):
        was, now = ("without", "with") if is_reduced else ("with", "without")
        raise PlanMismatch(
            f"The checkpoint in {str(folder)!r} is that of a run {was} --reduce. One {now} it cannot go on from there. "
            "Give this run another --out, or ask everything anew: with --plan-changed rerun, or with --fresh."
        )


def _has_agents(folder: Path) -> bool:
    try:
        with CheckpointReader(folder) as reader:
            return next(reader.agents(), None) is not None
    except StoreError:
        return False
