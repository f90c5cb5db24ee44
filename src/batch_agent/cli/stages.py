"""Checkpoints of runs with stages: a folder for each, in the folder of the run."""

from contextlib import suppress
from pathlib import Path

from ..core.errors import PlanMismatch, StoreError
from ..observe.log import FILE
from ..observe.report.holding import is_held
from ..observe.report.writing import REPORT
from ..store.reader import CheckpointReader

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


def forget(folder: Path) -> None:
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
