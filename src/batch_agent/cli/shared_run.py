"""A run on a Redis server, as commands use it: publishes its command for workers, and copies the run for readers."""

import asyncio
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import unquote

from ..atomic_file import atomic_write
from ..cluster.coordinator_address import coordinator_of
from ..cluster.presence import ClientPresence
from ..cluster.redis.redis_coordinator import no_such_run, runs_known
from ..cluster.redis.run_copy import copy_run
from ..cluster.run_files import RUN_FILES, save_file
from ..cluster.run_observer import observe_run
from ..core.agent_config import AgentConfig
from ..core.coordinator import Coordinator, Documents
from ..core.errors import BackendError, PlanMismatch, SpecError, StoreError
from ..core.events import RunStarted
from ..core.facts import Fact
from ..core.fast_dataclass import dataclass
from ..core.protocols.store import Prices
from ..core.results import AgentResult
from ..core.safe_text import public_url
from ..core.spec import BatchSpec
from ..evaluation.model_runs import model_folder, model_stage
from ..evaluation.verdicts import JUDGE_PREFIX
from ..observe.background_sink import BackgroundSink
from ..observe.checkpoint_results import recorded_config, recorded_result
from ..observe.event_recorder import EventRecorder
from ..observe.score_file import MODEL_PREFIX
from ..run.checkpoint_table import CheckpointTable
from ..store.lock import DirectoryLock
from ..store.reader import CheckpointReader
from .checkpoint import checkpoints_in, model_checkpoints, open_checkpoint
from .options.cluster import STORE
from .saved_command import read_command
from .worker_manifest import WorkerManifest

COMMAND = "command"
"""Name of the document with the run's command, for workers."""
SAVED_COMMAND = "saved command"
"""Name of the document with the complete command, for `batch-agent resume`."""


@dataclass(frozen=True, slots=True)
class SharedRun:
    """A run on a Redis server. All methods raise StoreError if the server cannot be reached."""

    store: str
    name: str
    folder: Path | None = None
    """Directory of the process that submitted the run, if it is on this machine."""
    lease: float = 15.0
    stages: Sequence[str] = ()
    """Stages of the run that this process submits, if it is a flow."""

    def __post_init__(self) -> None:
        """Raises SpecError."""
        self._spec()

    def _spec(self) -> BatchSpec:
        return BatchSpec.of(task="none", inputs=[], store=self.store, run_id=self.name, lease=self.lease)

    @property
    def url(self) -> str:
        """URL of the server, without a password."""
        return public_url(self.store)

    @property
    def title(self) -> str:
        return f"run {self.name} at {self.url}"

    def stage(self, name: str) -> "SharedRun":
        """One stage of a flow, which is a run of its own."""
        return SharedRun(self.store, f"{self.name}.{name}", lease=self.lease)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Coordinator]:
        """Opens the coordinator of the run for the duration of the `async with` block."""
        coordinator = coordinator_of(self._spec())
        assert coordinator is not None
        try:
            await coordinator.open()
            yield coordinator
        finally:
            await coordinator.aclose()

    async def has_submitter(self, documents: Documents) -> bool:
        """Whether a submitter is collecting results."""
        return await ClientPresence(documents, self.lease).any_present()

    @asynccontextmanager
    async def publish(self, command: bytes, saved: bytes) -> AsyncIterator[None]:
        """Publishes the command for workers and the complete one for `resume`. Restores the previous commands if the
        block raises PlanMismatch or BackendError, because the run has another plan or the backend is unreachable."""
        new = {COMMAND: command, SAVED_COMMAND: saved}
        async with self.connect() as coordinator:
            before = {name: (await coordinator.documents.read(name)).data for name in new}
            for name, data in new.items():  # a concurrent submitter may win, with the same command
                await coordinator.documents.compare_and_set(name, before[name], data)
        try:
            yield
        except (PlanMismatch, BackendError):
            async with self.connect() as coordinator:
                for name, data in new.items():
                    await coordinator.documents.compare_and_set(name, data, before[name])
            raise

    async def saved_command(self) -> bytes:
        """The command of a run whose caller is gone. Raises SpecError and StoreError if the run cannot be resumed from
        it."""
        async with self.connect() as coordinator:
            saved, known = (await coordinator.documents.read(SAVED_COMMAND)).data, await runs_known(self.store)
            if saved is not None and await self.has_submitter(coordinator.documents):
                raise StoreError(
                    f"Run {self.name!r} at {self.url} has a caller, which collects its results. If it was killed, try "
                    "again when its lease has expired, after 15 seconds or what --lease says."
                )
        if saved is not None:
            return saved
        if self.name in known:
            raise SpecError(
                f"Run {self.name!r} at {self.url} was not started by `batch-agent run` of this version. Run the same "
                "program or command again, with the same store and name: it continues the run."
            )
        raise no_such_run(self.name, self.url, known)

    async def delete(self) -> None:
        """Deletes the run from the server. Raises StoreError if a submitter is active."""
        async with self.connect() as coordinator:
            if await self.has_submitter(coordinator.documents):
                raise StoreError(
                    f"Another process is running {self.name!r} at {self.url}. Wait until it ends, or choose another "
                    f"name with --run. If it was killed, its lease expires after {self.lease:g} seconds."
                )
            await coordinator.delete_run()
        judges = [run for run in await runs_known(self.store) if run.startswith(f"{self.name}.{JUDGE_PREFIX}")]
        for each in [*map(self.stage, self.stages), *(SharedRun(self.store, run) for run in judges)]:
            async with each.connect() as coordinator:
                await coordinator.delete_run()

    def join_hint(self, flags: Sequence[str] = ()) -> list[str]:
        """Lines that show how to start a worker. `flags`: further options that the worker needs."""
        command = ["batch-agent", "worker", "--store", self.url, "--run", self.name, *flags]
        lines = [f"To join run {self.name} from another machine:", f"  {shlex.join(command)}"]
        if self.url != self.store:
            lines.append(f"  (add the password to the URL, or set the whole URL in {STORE})")
        return lines

    def check_is_one(self, copy: Path, what: str) -> None:
        """Raises StoreError for a flow, because a command can only `what` one stage at a time."""
        checkpoints = checkpoints_in(copy)
        if copy not in checkpoints:
            stages = (f"{self.url} --run {self.name}.{stage_of(each)}" for each in checkpoints)
            raise StoreError(f"The {self.title} has stages. Choose the one to {what}: {' or '.join(stages)}")

    def copy(self, folder: Path, agent: str | None = None) -> bool:
        """Like `copy_run`. The models of a run with `models=` get directories as in its checkpoint."""
        is_active = asyncio.run(copy_run(self.store, self.name, folder, agent=agent))
        if agent is None:
            _name_models(folder)
        return is_active

    def save_files(self, copy: Path) -> None:
        """Keeps scores and comparisons that were written to a copy: stores them on the server and, if the caller's
        report is on this machine, next to it."""
        for folder in (copy, *model_checkpoints(copy)):
            run = self if folder == copy else self.stage(stage_of(folder))
            files = {name: (folder / name).read_bytes() for name in RUN_FILES if (folder / name).exists()}
            asyncio.run(run._save(files))
            if self.folder is not None and (here := self.folder / folder.relative_to(copy)).is_dir():
                for name, data in files.items():
                    with atomic_write(here / name, is_private=True) as file:
                        file.write(data)

    async def _save(self, files: Mapping[str, bytes]) -> None:
        async with self.connect() as coordinator:
            for name, data in files.items():
                await save_file(coordinator.documents, name, data)

    def max_retries(self) -> int | None:
        """The value in the run's command; None if the run was not started by `batch-agent run`."""
        if self.folder is not None:
            with suppress(StoreError, KeyError):
                return int(read_command(self.folder)[1]["max_retries"])
        command = asyncio.run(self._command())
        return None if command is None else WorkerManifest.from_json(command).options.get("max_retries")

    async def _command(self) -> bytes | None:
        async with self.connect() as coordinator:
            return (await coordinator.documents.read(COMMAND)).data

    async def record(self, folder: Path, *, follows: bool) -> None:
        """Copies the run to the directory and writes an event log there, beginning with what has ended. `follows`:
        continue with the workers' events for as long as a process works on the run. Raises SpecError and StoreError."""
        async with self.connect() as coordinator:
            after = await coordinator.updates.position()
            is_active = await copy_run(self.store, self.name, folder)
            self.check_is_one(folder, "show")
            with ExitStack() as stack:
                if is_active:
                    lock = DirectoryLock(folder)
                    lock.take()  # as the run would hold it
                    stack.callback(lock.release)
                config, prices, results = await asyncio.to_thread(_read, folder)
                started = RunStarted(self.url, config.model, 0, len(results), prices=prices)
                ended = [result for result in results if result.status in ("answered", "failed")]

                def rebuild(key: str, facts: Sequence[Fact]) -> AgentResult | None:
                    return recorded_result(config, key, facts)

                events = stack.enter_context(BackgroundSink([EventRecorder(folder)]))
                await observe_run(coordinator, after, started, ended, events, rebuild, follows=follows)


def stage_of(checkpoint: Path) -> str:
    """Name of the stage that has its copy in this directory."""
    name = checkpoint.name
    return model_stage(unquote(name.removeprefix(MODEL_PREFIX))) if name.startswith(MODEL_PREFIX) else name


def _name_models(folder: Path) -> None:
    for checkpoint in checkpoints_in(folder):
        if checkpoint != folder:
            with CheckpointReader(checkpoint) as reader:
                model = recorded_config(reader.plan(), None, None).model
            if checkpoint.name == model_stage(model):
                checkpoint.rename(model_folder(folder, model))


def _read(folder: Path) -> tuple[AgentConfig, Prices | None, list[AgentResult]]:
    with open_checkpoint(folder, None, None) as (reader, config):
        return config, reader.prices(), [result for _, result in CheckpointTable(folder, reader, config)]
