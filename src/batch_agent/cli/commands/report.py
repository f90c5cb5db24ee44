"""batch-agent report."""

from pathlib import Path

from ...core.errors import StoreError
from ...observe.event_log import FILE
from ...observe.report.html import REPORT, write_report
from ..object_files import Location, OptionalLocation, open_to_read, open_to_write

_RUN_FILES = (FILE, "run.sqlite3", "run.lock", "command.json")


def report(folder: Location, *, out: OptionalLocation = None) -> None:
    """Writes the report, and prints its path. Raises StoreError and SpecError.

    Parameters
    ----------
    folder
        Checkpoint directory of the run. By default, results.jsonl.checkpoint for results.jsonl.
    out
        File to write, also in an object store. By default, report.html in the checkpoint.
    """
    if out is None and isinstance(folder, str):
        out = f"{folder.rstrip('/')}/{REPORT}"
    with open_to_read(folder) as read, open_to_write(out) as path:
        check_is_run(read)
        try:
            written = write_report(read, path)
        except OSError as error:
            raise StoreError(f"The log in {str(folder)!r} cannot be read: {error.strerror}.") from error
    print(f"Report: {out if isinstance(out, str) else written}")


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
