"""Address of a run on a command line: a directory, a folder in an object store, or a Redis server and a name. All
commands open runs here, wherever they are. A run on a server is opened as a copy."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, TypeGuard

from cyclopts import Parameter

from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.safe_text import public_url
from ..core.task_fields import is_object_url
from ..data.inputs import print_notice
from ..store.lock import DirectoryLock
from .checkpoint import check_is_one, checkpoints_in, report_lines
from .options.cluster import STORE
from .saved_command import read_command, remote_run_id
from .shared_run import SharedRun, stage_of


def _as_run_location(_: Any, tokens: Any) -> Path | str:
    value = str(tokens[0].value)
    return value if "://" in value else Path(value)


RunLocation = Annotated[Path | str, Parameter(converter=_as_run_location)]
"""The FOLDER of commands about a run: a path, or the URL of an object store or Redis server as a string."""
OptionalRunLocation = Annotated[Path | str | None, Parameter(converter=_as_run_location)]


@dataclass(frozen=True, slots=True)
class OpenRun:
    """The checkpoint of a run in a local directory, which may be a copy."""

    folder: Path
    title: str
    """Title for messages: the directory or URL as the user gave it, or the run and its server."""
    guard: AbstractAsyncContextManager[None]
    """Stops a run that this process drives if another one takes its checkpoint."""
    shared: SharedRun | None = None
    """The run on a server of which the checkpoint is a copy."""

    def title_of(self, checkpoint: Path) -> str:
        """Title of a checkpoint of the run or of one of its stages."""
        if checkpoint == self.folder:
            return self.title
        if self.shared is not None:
            return self.shared.stage(stage_of(checkpoint)).title
        return f"{self.title.rstrip('/')}/{checkpoint.relative_to(self.folder)}"

    def check_is_one(self, what: str) -> None:
        """Like `checkpoint.check_is_one`."""
        if self.shared is None:
            check_is_one(self.folder, what, self.title)
        else:
            self.shared.check_is_one(self.folder, what)

    def max_retries(self) -> int | None:
        """The value of a run on a server; None if the run is in the directory or the value is unknown."""
        return None if self.shared is None else self.shared.max_retries()

    def report_lines(self) -> list[str]:
        """Like `checkpoint.report_lines`. In an object store, the report is uploaded at the end."""
        return report_lines(self.folder, self.title)


@contextmanager
def open_run(location: Path | str, run: str | None = None) -> Iterator[OpenRun]:
    """Opens a run for reading, for the duration of the block. Raises SpecError and StoreError."""
    with find_run(location, run) as found:
        if isinstance(found, Path):
            yield OpenRun(found, str(location), nullcontext())
        else:
            with _copied(found) as copy:
                yield copy


@contextmanager
def open_run_to_score(location: Path | str, run: str | None = None) -> Iterator[OpenRun]:
    """Like `open_run`. Scores and comparisons written to its directory are kept, wherever the run is."""
    shared = _submitted(location, run)
    if shared is None:
        with open_folder(location) as folder:
            yield folder
        return
    with _copied(shared) as copy:
        yield copy
        shared.save_files(copy.folder)


@contextmanager
def open_folder(location: Path | str) -> Iterator[OpenRun]:
    """Opens the checkpoint directory of a run that this process drives. If it is in an object store, the directory is a
    local copy that is uploaded meanwhile. Raises SpecError and StoreError."""
    if isinstance(location, Path):
        yield OpenRun(location, str(location), nullcontext())
        return
    from ..objects.remote_checkpoint import RemoteCheckpoint  # only for object stores

    with RemoteCheckpoint(location, print_notice, "--checkpoint") as copy:
        yield OpenRun(copy.directory, location, copy.guard())


@contextmanager
def find_run(location: Path | str, run: str | None = None) -> Iterator[Path | SharedRun]:
    """Finds the run that a command line names: its checkpoint directory, a temporary copy of one in an object store, or
    the run on a server. Raises SpecError and StoreError."""
    if is_server_url(location):
        yield server_run(location, run)
        return
    check_unnamed(run)
    with download_folder(location) as folder:
        yield _submitted_from(folder) or folder


def find_live_run(location: Path | str, run: str | None = None) -> Path | SharedRun:
    """Like `find_run`, for a live run. If its checkpoint is in an object store, the directory is the local one of its
    process on this machine."""
    return _submitted(location, run) or _folder_here(location)


@contextmanager
def download_folder(location: Path | str) -> Iterator[Path]:
    """The checkpoint of a run or a stage. One in an object store is a temporary copy of its last upload. Raises
    SpecError and StoreError."""
    if isinstance(location, Path):
        yield location
        return
    from ..objects.remote_checkpoint import download_checkpoint

    with tempfile.TemporaryDirectory(prefix="batch-agent-") as folder:
        yield download_checkpoint(location, Path(folder))


def is_server_url(location: Path | str) -> TypeGuard[str]:
    """Whether a RunLocation is the URL of a server, not of a folder in an object store."""
    return isinstance(location, str) and not is_object_url(location)


def server_run(url: str, run: str | None) -> SharedRun:
    """The run with this name on a server. Raises SpecError."""
    if run is None:
        raise SpecError(f"{public_url(url)!r} may have several runs. Add --run NAME.")
    return SharedRun(url, run)


def check_unnamed(run: str | None) -> None:
    """Raises SpecError if a name is given for a run that is not on a server."""
    if run is not None:
        raise SpecError("--run is for a run on a server: pass its URL, such as redis://host:6379/0, instead of FOLDER.")


def _submitted(location: Path | str, run: str | None) -> SharedRun | None:
    """The run on a server, if the command line names it or the local directory of a process that submitted it."""
    if is_server_url(location):
        return server_run(location, run)
    check_unnamed(run)
    return _submitted_from(_folder_here(location))


def _submitted_from(folder: Path) -> SharedRun | None:
    """The run on a server that a process with this directory has submitted; None if the checkpoint is in the directory
    itself. Raises SpecError."""
    name = remote_run_id(folder)
    if name is None:
        return None
    store = os.environ.get(STORE) or read_command(folder)[1].get("store")
    if store is None:
        raise SpecError(
            f"The run in {str(folder)!r} is on a server whose URL contained a password, which is not stored. Set "
            f"{STORE} to the URL, or pass the URL and --run {name}."
        )
    return SharedRun(str(store), name, folder)


def _folder_here(location: Path | str) -> Path:
    """The local checkpoint of a live run; the local copy if the checkpoint is in an object store."""
    if isinstance(location, Path):
        return location
    from ..objects.remote_checkpoint import local_directory

    return local_directory(location)


@contextmanager
def _copied(shared: SharedRun) -> Iterator[OpenRun]:
    with tempfile.TemporaryDirectory(prefix="batch-agent-") as temporary, ExitStack() as locks:
        folder = Path(temporary, shared.name)
        if shared.copy(folder):
            for checkpoint in checkpoints_in(folder):
                lock = DirectoryLock(checkpoint)
                lock.take()  # the run would hold it: its agents are running
                locks.callback(lock.release)
        yield OpenRun(folder, shared.title, nullcontext(), shared)
