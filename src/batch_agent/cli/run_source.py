"""Run that a command reads: a checkpoint, or a run on a Redis server, of which the command reads a copy."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from ..cluster.redis.run_copy import copy_run
from ..core.errors import SpecError, StoreError
from ..core.fast_dataclass import dataclass
from ..core.safe_text import public_url
from ..core.spec import BatchSpec
from ..observe.score_file import COMPARISONS, SCORES
from ..store.lock import DirectoryLock
from .checkpoint import check_is_one, checkpoints_in
from .object_files import is_server_url, open_to_read
from .options.cluster import STORE
from .remote_run import COMMAND, RemoteRun
from .saved_command import read_command, remote_run_id
from .worker_manifest import WorkerManifest

_KEPT = (SCORES, COMPARISONS)
"""Files in the directory of a run on a server that its exports use."""


@dataclass(frozen=True, slots=True)
class SharedRun:
    """A run on a Redis server."""

    store: str
    name: str
    folder: Path | None = None
    """Directory of the process that submitted it, if that is on this machine."""

    @property
    def title(self) -> str:
        return f"run {self.name} at {public_url(self.store)}"

    def stage(self, name: str) -> "SharedRun":
        """One stage of a flow, which is a run of its own."""
        return SharedRun(self.store, f"{self.name}.{name}")

    def check_is_one(self, copy: Path, what: str) -> None:
        """Raises StoreError for a flow, of which a command can only `what` one stage at a time."""
        checkpoints = checkpoints_in(copy)
        if copy not in checkpoints:
            stages = (f"{public_url(self.store)} --run {self.name}.{each.name}" for each in checkpoints)
            raise StoreError(f"The {self.title} has stages. Choose the one to {what}: {' or '.join(stages)}")

    def copy(self, folder: Path, agent: str | None = None) -> bool:
        """As `copy_run`."""
        return asyncio.run(copy_run(self.store, self.name, folder, agent=agent))


@dataclass(frozen=True, slots=True)
class RunSource:
    """A checkpoint to read."""

    folder: Path
    title: str
    """For people: its directory or URL, or the run and its server."""
    max_retries: int | None = None
    """The value of a run on a server; None if it is in the directory, or unknown."""
    shared: SharedRun | None = None
    """The run on a server that the checkpoint is a copy of."""

    def title_of(self, checkpoint: Path) -> str:
        """Title of the checkpoint of the run, or of one of its stages."""
        stage = str(checkpoint.relative_to(self.folder))
        if checkpoint == self.folder:
            return self.title
        return f"{self.title.rstrip('/')}/{stage}" if self.shared is None else self.shared.stage(stage).title

    def check_is_one(self, what: str) -> None:
        """As `checkpoint.check_is_one`."""
        if self.shared is None:
            check_is_one(self.folder, what, self.title)
        else:
            self.shared.check_is_one(self.folder, what)


@contextmanager
def run_source(location: Path | str, run: str | None = None) -> Iterator[RunSource]:
    """The checkpoint of a run, for the duration of the block. Raises SpecError and StoreError."""
    with find_run(location, run) as found:
        if isinstance(found, Path):
            yield RunSource(found, str(location))
        else:
            with _copied(found) as source:
                yield source


@contextmanager
def find_run(location: Path | str, run: str | None = None) -> Iterator[Path | SharedRun]:
    """The run that a command line names: the directory of its checkpoint, a copy of that in an object store, or the run
    on a server. Raises SpecError and StoreError."""
    if is_server_url(location):
        yield server_run(location, run)
        return
    check_unnamed(run)
    with open_to_read(location) as folder:
        yield submitted_run(folder) or folder


@contextmanager
def _copied(shared: SharedRun) -> Iterator[RunSource]:
    with TemporaryDirectory(prefix="batch-agent-") as temporary:
        folder, locks = Path(temporary, shared.name), list[DirectoryLock]()
        try:
            if shared.copy(folder):
                locks += map(DirectoryLock, checkpoints_in(folder))
                for lock in locks:
                    lock.take()  # as the run would hold it: its agents are running
            if shared.folder is not None:
                for name in _KEPT:
                    with suppress(FileNotFoundError):
                        shutil.copy(shared.folder / name, folder)
            yield RunSource(folder, shared.title, _max_retries(shared), shared)
        finally:
            for lock in locks:
                lock.release()


def server_run(url: str, run: str | None) -> SharedRun:
    """The run of this name on a server. Raises SpecError."""
    if run is None:
        raise SpecError(f"{public_url(url)!r} may have several runs. Add --run NAME.")
    BatchSpec.of(task="none", inputs=[], store=url, run_id=run)  # validated
    return SharedRun(url, run)


def check_unnamed(run: str | None) -> None:
    """Raises SpecError for the name of a run whose location is not a server."""
    if run is not None:
        raise SpecError("--run is for a run on a server: pass its URL, such as redis://host:6379/0, instead of FOLDER.")


def submitted_run(folder: Path) -> SharedRun | None:
    """The run on a server that a process with this directory submitted. None for a run whose checkpoint is in the
    directory. Raises SpecError."""
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


def _max_retries(shared: SharedRun) -> int | None:
    """The value in the command of the run; None if it was not started by `batch-agent run`."""
    if shared.folder is not None:
        with suppress(StoreError, KeyError):
            return int(read_command(shared.folder)[1]["max_retries"])
    command = asyncio.run(_command(shared))
    return None if command is None else WorkerManifest.from_json(command).options.get("max_retries")


async def _command(shared: SharedRun) -> bytes | None:
    async with RemoteRun(shared.store, shared.name).connect() as coordinator:
        return (await coordinator.read(COMMAND)).data
