"""batch-agent report."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ...core.errors import StoreError
from ...observe.event_log import FILE
from ...observe.report.html import REPORT, write_report
from ..object_files import OptionalLocation, open_to_write
from ..run_address import RunLocation, find_run, is_server_url
from ..shared_run import SharedRun

_RUN_FILES = (FILE, "run.sqlite3", "run.lock", "command.json")


def report(folder: RunLocation, *, run: str | None = None, out: OptionalLocation = None) -> None:
    """Writes the report, and prints its path. Raises StoreError and SpecError.

    Parameters
    ----------
    folder
        Checkpoint directory of the run, also in an object store, or the URL of a Redis server. By default,
        results.jsonl.checkpoint for results.jsonl.
    run
        Name of the run, if FOLDER is the URL of a Redis server.
    out
        File to write, also in an object store. By default, report.html in the checkpoint, or in this directory for a
        run on a server.
    """
    if out is None and isinstance(folder, str):
        out = Path(REPORT) if is_server_url(folder) else f"{folder.rstrip('/')}/{REPORT}"
    with find_run(folder, run) as found, _log_folder(found) as read, open_to_write(out) as path:
        check_is_run(read)
        try:
            written = write_report(read, path)
        except OSError as error:
            raise StoreError(f"The log in {str(read)!r} cannot be read: {error.strerror}.") from error
    print(f"Report: {out if isinstance(out, str) else written}")


@contextmanager
def _log_folder(found: Path | SharedRun) -> Iterator[Path]:
    """The directory with the event log. For a run on a server, the log is made from its facts, unless the submitting
    process has one on this machine."""
    if isinstance(found, Path):
        yield found
    elif found.folder is not None:
        yield found.folder
    else:
        with TemporaryDirectory(prefix="batch-agent-") as temporary:
            copy = Path(temporary, found.name)
            asyncio.run(found.record(copy, follows=False))
            yield copy


def check_is_run(folder: Path) -> None:
    """Raises StoreError for a directory that is not a checkpoint or cannot be read."""
    try:
        _check(folder)
    except OSError as error:
        raise StoreError(f"{str(folder)!r} cannot be read: {error.strerror}.") from error


def _check(folder: Path) -> None:
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(
            f"{str(folder)!r} is not a directory. Pass the checkpoint of a run, such as results.jsonl.checkpoint."
        ) from None
    if FILE not in names and (folder.absolute().parent / FILE).exists():
        raise StoreError(
            f"{str(folder)!r} is one stage of the run in {str(folder.absolute().parent)!r}. Use that directory."
        )
    if not any(name in names for name in _RUN_FILES) and not any(folder.glob("*/run.sqlite3")):
        raise StoreError(f"{str(folder)!r} is not the checkpoint of a run: it has neither {FILE} nor run.sqlite3.")
