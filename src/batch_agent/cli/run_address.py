"""Address of a run on a command line: a directory, a folder in an object store, or a Redis server and a name. A run on
a server is read as a copy."""

import asyncio
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, TypeGuard

from cyclopts import Parameter

from ..cluster.redis.run_copy import copy_run
from ..cluster.run_observer import observe_run
from ..core.agent_config import AgentConfig
from ..core.errors import SpecError, StoreError
from ..core.events import RunStarted
from ..core.facts import Fact
from ..core.fast_dataclass import dataclass
from ..core.protocols import Prices
from ..core.results import AgentResult
from ..core.safe_text import public_url
from ..core.spec import BatchSpec
from ..core.task_fields import is_object_url
from ..observe.background_sink import BackgroundSink
from ..observe.checkpoint_results import recorded_result
from ..observe.event_recorder import EventRecorder
from ..observe.score_file import COMPARISONS, SCORES
from ..run.checkpoint_table import CheckpointTable
from ..store.lock import DirectoryLock
from .checkpoint import check_is_one, checkpoints_in, open_checkpoint
from .object_files import open_to_read
from .options.cluster import STORE
from .remote_run import COMMAND, RemoteRun
from .saved_command import read_command, remote_run_id
from .worker_manifest import WorkerManifest

_KEPT = (SCORES, COMPARISONS)
"""Files in the directory of a run on a server that its exports use."""


def _as_run_location(_: Any, tokens: Any) -> Path | str:
    value = str(tokens[0].value)
    return value if "://" in value else Path(value)


RunLocation = Annotated[Path | str, Parameter(converter=_as_run_location)]
"""What FOLDER is, for commands about a run: a path, or the URL of an object store or of a Redis server as a string."""


def is_server_url(location: Path | str) -> TypeGuard[str]:
    """Whether a RunLocation is the URL of a server, and not of a folder in an object store."""
    return isinstance(location, str) and not is_object_url(location)


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


async def record_run(shared: SharedRun, folder: Path, *, follows: bool) -> None:
    """Copies the run to the directory, and writes an event log there: first of what has ended. `follows`: then of what
    the workers do, for as long as a process works on the run. Raises SpecError and StoreError."""
    async with RemoteRun(shared.store, shared.name).connect() as coordinator:
        after = await coordinator.position()
        is_active = await copy_run(shared.store, shared.name, folder)
        shared.check_is_one(folder, "show")
        with ExitStack() as stack:
            if is_active:
                lock = DirectoryLock(folder)
                lock.take()  # as the run would hold it
                stack.callback(lock.release)
            config, prices, results = await asyncio.to_thread(_read, folder)
            started = RunStarted(public_url(shared.store), config.model, 0, len(results), prices=prices)
            ended = [result for result in results if result.status in ("answered", "failed")]

            def rebuild(key: str, facts: Sequence[Fact]) -> AgentResult | None:
                return recorded_result(config, key, facts)

            events = stack.enter_context(BackgroundSink([EventRecorder(folder)]))
            await observe_run(coordinator, after, started, ended, events, rebuild, follows=follows)


def _read(folder: Path) -> tuple[AgentConfig, Prices | None, list[AgentResult]]:
    with open_checkpoint(folder, None, None) as (reader, config):
        return config, reader.prices(), [result for _, result in CheckpointTable(folder, reader, config)]
