"""batch-agent report."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ...core.errors import StoreError
from ...observe.event_log import FILE
from ...observe.report.html import REPORT, write_report

if TYPE_CHECKING:
    from ..run_source import SharedRun

_RUN_FILES = (FILE, "run.sqlite3", "run.lock", "command.json")


def report(folder: str | Path, *, run: str | None = None, out: Path | None = None) -> None:
    """Writes the report, and prints its path. Raises StoreError and SpecError.

    Parameters
    ----------
    folder
        Checkpoint directory of the run, or the URL of a Redis server. By default, results.jsonl.checkpoint for
        results.jsonl.
    run
        Name of the run, if FOLDER is the URL of a Redis server.
    out
        File to write. By default, report.html in the checkpoint, or in this directory for a run on a server.
    """
    from ..run_source import shared_run  # not for `batch-agent run`, which prints the path of a report

    shared = shared_run(folder, run)
    if shared is None or shared.folder is not None:
        _report(Path(folder), out)
    else:
        _report_shared(shared, out)


def _report_shared(shared: "SharedRun", out: Path | None) -> None:
    """The log of the run is in the directory of the process that submitted it: here, it is made from the facts."""
    from ..shared_view import record_run

    with TemporaryDirectory(prefix="batch-agent-") as temporary:
        copy = Path(temporary, shared.name)
        asyncio.run(record_run(shared, copy, follows=False))
        _report(copy, out or Path(REPORT))


def _report(folder: Path, out: Path | None) -> None:
    check_is_run(folder)
    try:
        print(f"Report: {write_report(folder, out)}")
    except OSError as error:
        raise StoreError(f"The log in {str(folder)!r} cannot be read: {error.strerror}.") from error


def check_is_run(folder: Path) -> None:
    """Raises StoreError for a directory that is not a checkpoint, or cannot be read."""
    try:
        _check(folder)
    except OSError as error:
        raise StoreError(f"{str(folder)!r} cannot be read: {error.strerror}.") from error


def _check(folder: Path) -> None:
    if not folder.is_dir():
        raise StoreError(
            f"{str(folder)!r} is not a directory. Pass the checkpoint of a run, such as results.jsonl.checkpoint."
        )
    if not (folder / FILE).exists() and (folder.absolute().parent / FILE).exists():
        raise StoreError(
            f"{str(folder)!r} is one stage of the run in {str(folder.absolute().parent)!r}. Use that directory."
        )
    if not any((folder / name).exists() for name in _RUN_FILES) and not any(folder.glob("*/run.sqlite3")):
        raise StoreError(f"{str(folder)!r} is not the checkpoint of a run: it has neither {FILE} nor run.sqlite3.")


def report_lines(folder: Path) -> list[str]:
    """A line with the path of the report, if there is one."""
    path = folder / REPORT
    return [f"Report: {path}"] if path.exists() else []
