"""A run at a server, where others can join it.

A worker that waits for its run: often it is started first.
"""

import asyncio
import shlex
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from ..cluster.connect import coordinator_of, run_id_of
from ..cluster.presence import ClientPresence
from ..cluster.redis.coordinator import runs_known
from ..core.coordinator import Coordinator
from ..core.errors import BackendError, PlanMismatch, SpecError, StoreError
from ..core.safe_text import public_url
from ..core.spec import BatchSpec
from .options.cluster import STORE

COMMAND = "command"
"""The document that says what the run asks."""


class RemoteRun:
    """By its name. Everything raises StoreError when the server cannot be reached."""

    def __init__(self, store: str, run_id: str | None, task: Any = "none", lease: float = 15.0) -> None:
        """`task`: for a run that has no other name. Raises SpecError."""
        self._spec = BatchSpec.of(task=task, inputs=[], store=store, run_id=run_id, lease=lease)
        self._store = store
        self.name = run_id_of(self._spec)
        self.place = public_url(store)

    @asynccontextmanager
    async def coordinator(self) -> AsyncIterator[Coordinator]:
        """Open, for as long as the block runs."""
        coordinator = coordinator_of(self._spec)
        assert coordinator is not None
        try:
            await coordinator.open()
            yield coordinator
        finally:
            await coordinator.aclose()

    async def is_called(self, coordinator: Coordinator) -> bool:
        """Whether somebody waits for its results."""
        return await ClientPresence(coordinator, self._spec.together.lease).any_present()

    @asynccontextmanager
    async def offering(self, command: bytes) -> AsyncIterator[None]:
        """Whoever joins from now on asks what this command does. One that is refused, because the run asks something
        else, or that names a backend which is not there, is taken back."""
        async with self.coordinator() as coordinator:
            before = (await coordinator.read(COMMAND)).data
            await coordinator.compare_and_set(COMMAND, before, command)  # another one may be quicker: it is as good
        try:
            yield
        except (PlanMismatch, BackendError):
            async with self.coordinator() as coordinator:
                await coordinator.compare_and_set(COMMAND, command, before)
            raise

    async def forget(self) -> None:
        """Raises StoreError where somebody is at work."""
        async with self.coordinator() as coordinator:
            if await self.is_called(coordinator):
                raise StoreError(
                    f"Another process works on run {self.name!r} at {self.place}. Wait until it ends, or give this one "
                    f"another name with --run-id. One that was killed is taken to be gone after "
                    f"{self._spec.together.lease:g} seconds."
                )
            await coordinator.delete_run()

    def how_to_join(self, flags: Sequence[str] = ()) -> list[str]:
        """In words. `flags`: what else a worker has to be told."""
        words = ["batch-agent", "worker", "--store", self.place, "--run", self.name, *flags]
        lines = [f"Run {self.name}: others can join with", f"  {shlex.join(words)}"]
        if self.place != self._store:
            lines.append(f"  (the password goes into the URL, as it does here, or the whole URL into {STORE})")
        return lines


_LOOK = 1.0
"""Seconds until it is looked for again, where nothing is heard."""


async def wait_for_command(run: RemoteRun, store: str, patience: float, tell: Callable[[str], None]) -> bytes | None:
    """What the run asks, as soon as there is something to do; None for one that is done, and that nobody has started
    again in `patience` seconds. Raises SpecError for one that nobody knows by then, or that cannot be joined."""
    now = asyncio.get_running_loop().time
    until = now() + patience
    async with run.coordinator() as coordinator:
        after, is_told = await coordinator.position(), False
        while not await _has_work(run, coordinator):
            if (left := until - now()) <= 0:
                await _check_known(run, coordinator, store)
                return None
            if not is_told:
                tell(await _waiting(run, coordinator, store, patience))
                is_told = True
            after = (await coordinator.poll(after, wait=min(left, _LOOK))).after
        command = (await coordinator.read(COMMAND)).data
    if command is None:
        raise SpecError(
            f"Run {run.name!r} at {run.place} was not started by `batch-agent run`. To join it, start the same program "
            "here that has started it, with the same store= and run_id=."
        )
    return command


async def _has_work(run: RemoteRun, coordinator: Coordinator) -> bool:
    return await run.is_called(coordinator) or await coordinator.pending_count() > 0


async def _waiting(run: RemoteRun, coordinator: Coordinator, store: str, patience: float) -> str:
    if (await coordinator.read(COMMAND)).data is not None:
        return f"Run {run.name} at {run.place} has nothing to do. Waiting up to {patience:g} s for more ..."
    return f"Waiting up to {patience:g} s for run {run.name} at {run.place} ... {await _listed(store)}"


async def _check_known(run: RemoteRun, coordinator: Coordinator, store: str) -> None:
    """Raises SpecError."""
    if (await coordinator.read(COMMAND)).data is None:
        raise SpecError(
            f"There is no run {run.name!r} at {run.place}. {await _listed(store)} A run is started with "
            f"batch-agent run --store {run.place} --run-id {run.name}"
        )


async def _listed(store: str) -> str:
    known: list[str] = []
    with suppress(StoreError):  # nobody needs it
        known = await runs_known(store)
    return f"Runs there: {', '.join(known)}." if known else "There are no runs there yet."
