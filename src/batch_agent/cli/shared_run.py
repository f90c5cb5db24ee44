"""A run at a server, where others can join it."""

import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ..cluster.callers import Callers
from ..cluster.opening import hub_of, run_id_of
from ..core.errors import BackendError, PlanMismatch, StoreError
from ..core.hub import Hub
from ..core.secret_text import public_url
from ..core.spec import BatchSpec
from .sharing import STORE

COMMAND = "command"
"""The document that says what the run asks."""


class SharedRun:
    """By its name. Everything raises StoreError when the server cannot be reached."""

    def __init__(self, store: str, run_id: str | None, task: Any = "none", lease: float = 15.0) -> None:
        """`task`: for a run that has no other name. Raises SpecError."""
        self._spec = BatchSpec.of(task=task, inputs=[], store=store, run_id=run_id, lease=lease)
        self._store = store
        self.name = run_id_of(self._spec)
        self.place = public_url(store)

    @asynccontextmanager
    async def hub(self) -> AsyncIterator[Hub]:
        """Open, for as long as the block runs."""
        hub = hub_of(self._spec)
        assert hub is not None
        try:
            await hub.open()
            yield hub
        finally:
            await hub.aclose()

    async def is_called(self, hub: Hub) -> bool:
        """Whether somebody waits for its results."""
        return await Callers(hub, self._spec.together.lease).are_there()

    @asynccontextmanager
    async def offering(self, command: bytes) -> AsyncIterator[None]:
        """Whoever joins from now on asks what this command does. One that is refused, because the run asks something
        else, or that names a backend which is not there, is taken back."""
        async with self.hub() as hub:
            before = (await hub.read(COMMAND)).data
            await hub.swap(COMMAND, before, command)  # another one may be quicker: it is as good
        try:
            yield
        except (PlanMismatch, BackendError):
            async with self.hub() as hub:
                await hub.swap(COMMAND, command, before)
            raise

    async def forget(self) -> None:
        """Raises StoreError where somebody is at work."""
        async with self.hub() as hub:
            if await self.is_called(hub):
                raise StoreError(
                    f"Another process works on run {self.name!r} at {self.place}. Wait until it ends, or give this one "
                    f"another name with --run-id. One that was killed is taken to be gone after "
                    f"{self._spec.together.lease:g} seconds."
                )
            await hub.forget()

    def how_to_join(self, flags: Sequence[str] = ()) -> list[str]:
        """In words. `flags`: what else a worker has to be told."""
        words = ["batch-agent", "worker", "--store", self.place, "--run", self.name, *flags]
        lines = [f"Run {self.name}: others can join with", f"  {shlex.join(words)}"]
        if self.place != self._store:
            lines.append(f"  (the password goes into the URL, as it does here, or the whole URL into {STORE})")
        return lines
