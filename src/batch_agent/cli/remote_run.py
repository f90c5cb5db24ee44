"""A distributed run on a Redis server: publishing its command, and waiting for it as a worker."""

import asyncio
import shlex
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from ..cluster.coordinator_address import coordinator_of, run_id_of, stage_spec
from ..cluster.presence import ClientPresence
from ..cluster.redis.redis_coordinator import runs_known
from ..core.coordinator import Coordinator
from ..core.errors import BackendError, PlanMismatch, SpecError, StoreError
from ..core.safe_text import public_url
from ..core.spec import BatchSpec
from .options.cluster import STORE

COMMAND = "command"
"""Name of the document with the run's command, for workers."""
SAVED_COMMAND = "saved command"
"""Name of the document with the whole command, for `batch-agent resume`."""


class RemoteRun:
    """A run on a server, by its name. All methods raise StoreError if the server cannot be reached."""

    def __init__(
        self,
        store: str,
        run_id: str | None,
        task: Any = "none",
        lease: float = 15.0,
        stages: Sequence[str] = (),
    ) -> None:
        """`task`: the name is derived from it if `run_id` is None. `stages`: of a flow. Raises SpecError."""
        self._stages = stages
        self._spec = BatchSpec.of(task=task, inputs=[], store=store, run_id=run_id, lease=lease)
        self._store = store
        self.name = run_id_of(self._spec)
        self.url = public_url(store)
        """URL of the server, without a password."""

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Coordinator]:
        """The coordinator of the run, open for the duration of the `async with` block."""
        async with self._connect(self._spec) as coordinator:
            yield coordinator

    @asynccontextmanager
    async def _connect(self, spec: BatchSpec) -> AsyncIterator[Coordinator]:
        coordinator = coordinator_of(spec)
        assert coordinator is not None
        try:
            await coordinator.open()
            yield coordinator
        finally:
            await coordinator.aclose()

    async def has_submitter(self, coordinator: Coordinator) -> bool:
        """Whether a submitter is collecting results."""
        return await ClientPresence(coordinator, self._spec.distribution.lease).any_present()

    @asynccontextmanager
    async def publish(self, command: bytes, saved: bytes) -> AsyncIterator[None]:
        """Publishes the command for workers, and the whole one for `resume`. Restores the previous ones if the block
        raises PlanMismatch or BackendError: then the run has another plan, or the backend cannot be reached."""
        new = {COMMAND: command, SAVED_COMMAND: saved}
        async with self.connect() as coordinator:
            before = {name: (await coordinator.read(name)).data for name in new}
            for name, data in new.items():  # a concurrent submitter may win: its command is the same
                await coordinator.compare_and_set(name, before[name], data)
        try:
            yield
        except (PlanMismatch, BackendError):
            async with self.connect() as coordinator:
                for name, data in new.items():
                    await coordinator.compare_and_set(name, data, before[name])
            raise

    async def saved_command(self) -> bytes:
        """The command of a run whose caller is gone. Raises SpecError and StoreError if it cannot be resumed so."""
        async with self.connect() as coordinator:
            saved, known = (await coordinator.read(SAVED_COMMAND)).data, await runs_known(self._store)
            if saved is not None and await self.has_submitter(coordinator):
                raise StoreError(
                    f"Run {self.name!r} at {self.url} has a caller, which collects its results. If it was killed, try "
                    "again when its lease has expired, after 15 seconds or what --lease says."
                )
        if saved is not None:
            return saved
        if self.name in known:
            raise SpecError(
                f"Run {self.name!r} at {self.url} was not started by `batch-agent run` of this version. Run the same "
                "program or command again, with the same store and name: it goes on where the run is."
            )
        listed = f"Existing runs: {', '.join(known)}." if known else "The server has no runs."
        raise StoreError(f"There is no run {self.name!r} at {self.url}. {listed}")

    async def delete(self) -> None:
        """Deletes the run from the server. Raises StoreError if a submitter is active."""
        async with self.connect() as coordinator:
            if await self.has_submitter(coordinator):
                raise StoreError(
                    f"Another process is running {self.name!r} at {self.url}. Wait until it ends, or choose another "
                    f"name with --run. If it was killed, its lease expires after {self._spec.distribution.lease:g} "
                    "seconds."
                )
            await coordinator.delete_run()
        for stage in self._stages:
            async with self._connect(stage_spec(self._spec, self.name, stage)) as coordinator:
                await coordinator.delete_run()

    def join_hint(self, flags: Sequence[str] = ()) -> list[str]:
        """Lines that show how to start a worker. `flags`: other options that it needs."""
        command = ["batch-agent", "worker", "--store", self.url, "--run", self.name, *flags]
        lines = [f"To join run {self.name} from another machine:", f"  {shlex.join(command)}"]
        if self.url != self._store:
            lines.append(f"  (add the password to the URL, or set the whole URL in {STORE})")
        return lines


_POLL_SECONDS = 1.0
"""Interval at which the server is queried while there are no notifications."""


async def wait_for_command(run: RemoteRun, store: str, patience: float, notify: Callable[[str], None]) -> bytes | None:
    """The command of the run, as soon as there is work; None if a finished run gets no new work in `patience` seconds.

    Raises SpecError for a run that does not exist by then, or that was not started by `batch-agent run`.
    """
    now = asyncio.get_running_loop().time
    until = now() + patience
    async with run.connect() as coordinator:
        after, is_notified = await coordinator.position(), False
        while not await _has_work(run, coordinator):
            if (left := until - now()) <= 0:
                await _check_known(run, coordinator, store)
                return None
            if not is_notified:
                notify(await _waiting(run, coordinator, store, patience))
                is_notified = True
            after = (await coordinator.poll(after, wait=min(left, _POLL_SECONDS))).after
        command = (await coordinator.read(COMMAND)).data
    if command is None:
        raise SpecError(
            f"Run {run.name!r} at {run.url} was not started by `batch-agent run`. To join it, start the same "
            "Python program here, with the same store= and run_id=."
        )
    return command


async def _has_work(run: RemoteRun, coordinator: Coordinator) -> bool:
    return await run.has_submitter(coordinator) or await coordinator.pending_count() > 0


async def _waiting(run: RemoteRun, coordinator: Coordinator, store: str, patience: float) -> str:
    if (await coordinator.read(COMMAND)).data is not None:
        return f"Run {run.name} at {run.url} has no work. Waiting up to {patience:g} s ..."
    return f"Waiting up to {patience:g} s for run {run.name} at {run.url} ... {await _known_runs(store)}"


async def _check_known(run: RemoteRun, coordinator: Coordinator, store: str) -> None:
    """Raises SpecError."""
    if (await coordinator.read(COMMAND)).data is None:
        raise SpecError(
            f"There is no run {run.name!r} at {run.url}. {await _known_runs(store)} To start it: "
            f"batch-agent run --store {run.url} --run {run.name}"
        )


async def _known_runs(store: str) -> str:
    known: list[str] = []
    with suppress(StoreError):  # the list is only a hint
        known = await runs_known(store)
    return f"Existing runs: {', '.join(known)}." if known else "The server has no runs."
