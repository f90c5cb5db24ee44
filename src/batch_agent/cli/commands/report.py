"""batch-agent report."""

from pathlib import Path

from ...core.errors import StoreError
from ...observe.event_log import FILE
from ...observe.report.html import REPORT, write_report

_SIGNS = (FILE, "run.sqlite3", "run.lock", "command.json")


def report(folder: Path, *, out: Path | None = None) -> None:
    """Writes the report, and says where. Raises StoreError and SpecError.

    Parameters
    ----------
    folder
        The run's checkpoint: results.jsonl.checkpoint for results.jsonl, if nothing else was said.
    out
        The file to write; if not given, report.html in the checkpoint.
    """
    check_is_run(folder)
    try:
        print(f"Report: {write_report(folder, out)}")
    except OSError as error:
        raise StoreError(f"The log in {str(folder)!r} cannot be read: {error.strerror}.") from error


def check_is_run(folder: Path) -> None:
    """Raises StoreError for a folder that no run has written to, or that one may not look into."""
    try:
        _check(folder)
    except OSError as error:
        raise StoreError(f"{str(folder)!r} cannot be read: {error.strerror}.") from error


def _check(folder: Path) -> None:
    if not folder.is_dir():
        raise StoreError(
            f"There is no folder {str(folder)!r}. Name the checkpoint of a run, such as results.jsonl.checkpoint."
        )
    if not (folder / FILE).exists() and (folder.absolute().parent / FILE).exists():
        raise StoreError(f"{str(folder)!r} is one stage of the run in {str(folder.absolute().parent)!r}: name that.")
    if not any((folder / sign).exists() for sign in _SIGNS) and not any(folder.glob("*/run.sqlite3")):
        raise StoreError(f"{str(folder)!r} is not the checkpoint of a run: it has neither {FILE} nor run.sqlite3.")


def report_lines(folder: Path) -> list[str]:
    """Where the report of a run is, if it has one."""
    path = folder / REPORT
    return [f"Report: {path}"] if path.exists() else []
