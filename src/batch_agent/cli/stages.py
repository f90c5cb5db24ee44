"""Checkpoints of runs with stages: a folder for each, in the folder of the run."""

from pathlib import Path

from ..core.errors import PlanMismatch, StoreError
from ..store.reader import CheckpointReader

MAP, REDUCE = "map", "reduce"
_FACTS = "run.sqlite3"


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
