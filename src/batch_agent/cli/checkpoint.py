"""Reading and deleting checkpoint directories. A run with stages has one subdirectory per stage."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from typing import Any

from ..core.agent_config import AgentConfig
from ..core.errors import PlanMismatch, StoreError
from ..core.options.fallback_entry import FALLBACK_PREFIX
from ..core.validation import at_least
from ..evaluation.verdicts import JUDGE_PREFIX
from ..observe.checkpoint_results import recorded_config
from ..observe.event_log import FILE
from ..observe.report.html import REPORT
from ..observe.report.lock_probe import is_held
from ..observe.score_file import COMPARISONS, MODEL_PREFIX, SCORES
from ..store.reader import CheckpointReader
from ..tools.tool_context import ARTIFACTS
from .import_by_name import load_schema
from .saved_command import read_command


@contextmanager
def open_checkpoint(
    folder: Path, schema: str | None, max_retries: int | None
) -> Iterator[tuple[CheckpointReader, AgentConfig]]:
    """A reader of the checkpoint and the configuration of its agents. Raises StoreError and SpecError."""
    if max_retries is not None:
        at_least("--max-retries", max_retries, 0)
    with CheckpointReader(folder) as reader:
        model: Any = load_schema(schema) if schema else None
        yield (
            reader,
            recorded_config(reader.plan(), model, _max_retries(folder) if max_retries is None else max_retries),
        )


def _max_retries(folder: Path) -> int | None:
    """The value in the saved command. For a stage, the command is saved with its run."""
    for directory in (folder, folder.absolute().parent):
        with suppress(StoreError):  # the run was started from Python
            retries: int = read_command(directory)[1]["max_retries"]
            return retries
    return None


MAP, REDUCE = "map", "reduce"
FACTS = "run.sqlite3"
_RUN_FILES = (
    FACTS,
    f"{FACTS}-wal",
    f"{FACTS}-shm",
    "run.lock",
    "run.syncs",
    "run.sock",
    "command.json",
    "forecast.json",
    SCORES,
    COMPARISONS,
    FILE,
    REPORT,
)


def checkpoint_of(out: Path | str) -> Path | str:
    """Default checkpoint directory of a run that writes its results to `out`. It is in an object store if `out` is."""
    if isinstance(out, str):
        name = out.removesuffix("/") if out.endswith("/") else out.rpartition("/*.")[0] or out
        return f"{name}.checkpoint/"
    return out.with_name(f"{out.name}.checkpoint")


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoint of a run and those of its stages. If there are none, `[folder]`, which the reader reports as
    missing. Raises StoreError for a directory that cannot be read."""
    try:
        own = [folder] if FACTS in os.listdir(folder) else []
        return [*own, *sorted(facts.parent for facts in folder.glob(f"*/{FACTS}"))] or [folder]
    except (FileNotFoundError, NotADirectoryError):
        return [folder]
    except OSError as error:
        raise StoreError(f"{str(folder)!r} cannot be read: {error.strerror}.") from error


def model_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of the models in a run with `--models`."""
    return [each for each in checkpoints_in(folder) if each.name.startswith(MODEL_PREFIX)]


def check_is_one(folder: Path, what: str, name: str) -> None:
    """Raises StoreError for a run with stages, because a command can only `what` one stage at a time. `name`: the
    directory as the user gave it."""
    checkpoints = checkpoints_in(folder)
    if folder not in checkpoints:
        stages = " or ".join(f"{name.rstrip('/')}/{each.name}" for each in checkpoints)
        raise StoreError(f"The run in {name!r} has stages. Choose the one to {what}: {stages}")


def report_lines(folder: Path, name: str) -> list[str]:
    """A line with the path of the report, if there is one. `name`: the directory as the user gave it."""
    return [f"Report: {name.rstrip('/')}/{REPORT}"] if (folder / REPORT).exists() else []


def delete_checkpoint(folder: Path) -> None:
    """Deletes the files of a run and of its tools, and nothing else: the directory may contain other files. Raises
    StoreError if the run is active."""
    if is_held(folder):
        raise StoreError(f"Another run is using the checkpoint {str(folder)!r}. Wait until it ends.")
    stages = [each for prefix in (MODEL_PREFIX, JUDGE_PREFIX, FALLBACK_PREFIX) for each in _nested(folder, prefix)]
    for directory in (folder / MAP, folder / REDUCE, *stages, folder):
        for file in (directory / name for name in _RUN_FILES):
            try:
                file.unlink()
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise StoreError(f"{str(file)!r} cannot be deleted: {error.strerror}.") from error
        _delete_artifacts(directory / ARTIFACTS)
        with suppress(OSError):  # it does not exist, or contains other files
            directory.rmdir()


def _nested(folder: Path, prefix: str) -> Iterator[Path]:
    """Directories of models and judges. The judges of a model come before the model."""
    for found in folder.glob(f"{prefix}*/"):
        yield from _nested(found, JUDGE_PREFIX)
        yield found


def _delete_artifacts(folder: Path) -> None:
    """Deletes the files made by tools. Agents of the next run may have the same keys, and their results would list
    these files. Raises StoreError."""
    try:
        rmtree(folder)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise StoreError(f"{str(folder)!r} cannot be deleted: {error.strerror or error}.") from error


def check_kind(folder: Path, *, is_reduced: bool) -> None:
    """Raises PlanMismatch if the checkpoint was made without a reduce and this run has one, or vice versa: all requests
    would be sent, and paid for, again."""
    own, other = (folder / MAP, folder) if is_reduced else (folder, folder / MAP)
    if _has_agents(other) and not _has_agents(own):
        was, now = ("without", "with") if is_reduced else ("with", "without")
        raise PlanMismatch(
            f"The checkpoint in {str(folder)!r} was made {was} --reduce. A run {now} it cannot resume from there. "
            "Choose another --out, or run all agents again with --plan-changed rerun or --fresh."
        )


def _has_agents(folder: Path) -> bool:
    try:
        with CheckpointReader(folder) as reader:
            return next(reader.agents(), None) is not None
    except StoreError:
        return False
