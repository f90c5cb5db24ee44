"""What a run has on a Ray cluster, from its start to its end."""

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ..core.errors import BatchAgentError, StoreError
from ..run.setup import RunSetup
from .actor_calls import answer, first_line, kill
from .coordinator_actor import CoordinatorActor
from .node_assignment import Node, alive, assign_nodes, is_loopback_per_node
from .ray_session import RaySession, is_elsewhere
from .serialization import for_workers, packed
from .worker_pool import WorkerPool

_NAMESPACE = "batch-agent"
_CALLS = 1000
"""Of the hub, at once: each worker waits for work and for news."""
_FAREWELL = 10.0


class RayDeployment:
    """A hub, unless the run has a server for that, and workers."""

    def __init__(self, setup: RunSetup) -> None:
        """Raises SpecError."""
        spec = setup.spec
        assert spec.together.cluster is not None
        self._setup = setup
        self._spec = spec
        self._data = packed(for_workers(spec), cloudpickle.dumps)
        self._session = RaySession(spec.together.cluster, spec.together.workers)
        self._coordinator: Any = None
        self._hub_is_open = asyncio.Event()
        self._crew: WorkerPool | None = None

    async def coordinator(self) -> Any:
        """The actor, as soon as it is there."""
        await self._hub_is_open.wait()
        return self._coordinator

    async def work(self) -> None:
        """Until it is cancelled. Raises SpecError and StoreError where it cannot begin, and what the workers raised
        when there are none left."""
        self._setup.notify("Starting Ray ...")
        await asyncio.to_thread(self._session.enter)
        nodes, here = await asyncio.to_thread(_look_round)
        name = None if self._spec.together.store else f"hub-{secrets.token_hex(8)}"
        if name is not None:
            await self._open_hub(name, here)
        taken = assign_nodes(nodes, self._spec.together.workers, here)
        self._tell(nodes, len(taken))
        self._crew = WorkerPool(taken, name, _NAMESPACE, self._setup.notify)
        await self._crew.work(self._data)

    async def leave(self) -> None:
        """Everything that was started ends."""
        try:
            if self._crew is not None:
                await self._crew.dismiss()
        finally:
            try:
                await self._close_hub()
            finally:
                await asyncio.to_thread(self._session.leave)

    async def _open_hub(self, name: str, here: str) -> None:
        folder = None if self._spec.checkpoint_dir is None else self._spec.checkpoint_dir.absolute()
        self._coordinator = (
            ray.remote(CoordinatorActor)
            .options(
                name=name,
                namespace=_NAMESPACE,
                num_cpus=0,
                max_concurrency=_CALLS,
                scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
            )
            .remote(None if folder is None else str(folder))
        )
        try:
            with _sign_in(folder) as sign:
                await answer(self._coordinator.open.remote(sign))
        except RayTaskError as error:
            if isinstance(error.cause, BatchAgentError):
                raise error.cause from None
            raise
        except RayError as error:
            raise StoreError(
                f"Ray could not start the hub of the run on the caller's node: {first_line(error)}"
            ) from error
        self._hub_is_open.set()

    async def _close_hub(self) -> None:
        if self._coordinator is None:
            return
        try:
            with suppress(RayError, TimeoutError):
                async with asyncio.timeout(_FAREWELL):
                    await answer(self._coordinator.close.remote())
        finally:
            kill(self._coordinator)

    def _tell(self, nodes: list[Node], workers: int) -> None:
        notify, backend = self._setup.notify, self._spec.backend
        where = "was started on this machine" if self._session.has_started else f"has {_count(len(nodes), 'node')}"
        notify(f"Ray {where}; {_count(workers, 'worker')} will run agents.")
        urls = [backend] if isinstance(backend, str) else backend
        assert isinstance(urls, list | tuple)
        for url in urls:
            if is_loopback_per_node(url, nodes):
                notify(f"{url} is another server on each node. Use a name that all of them know, if it is one server.")


def _look_round() -> tuple[list[Node], str]:
    """The nodes that are there, and the one that this process is on."""
    return alive(ray.nodes()), str(ray.get_runtime_context().get_node_id())


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


@contextmanager
def _sign_in(folder: Path | None) -> Iterator[str | None]:
    """A file that shows who else sees the folder."""
    if folder is None or not is_elsewhere():
        yield None
        return
    folder.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=folder, prefix="caller-") as file:
        yield file.name
