"""Deployment of a run on a Ray cluster: its coordinator and workers, from start to end.

A connection to Ray that existed before a run is left open. A connection made by a run is closed with the last run that
uses it."""

import asyncio
import logging
import os
import secrets
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ..core.errors import BatchAgentError, SpecError, StoreError
from ..core.options.backend_settings import NAMED, endpoints_in, settings_of
from ..run.setup import RunSetup
from .actor_calls import call_result, first_line, kill
from .coordinator_actor import CoordinatorActor
from .node_assignment import WORKER_CPUS, Node, assign_nodes, is_loopback_per_node, joined_nodes, live_nodes
from .serialization import serialize_spec, spec_for_workers
from .worker_pool import WorkerPool

_ADDRESS = "RAY_ADDRESS"
_NO_STATISTICS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_USAGE_STATS_PROMPT_ENABLED": "0"}
_MAX_ATTEMPTS = 3
"""Attempts to connect to an address. Ray's client server forks a process for each client, and some of them crash at
their start."""
_QUIET = {"log_to_driver": False, "logging_level": logging.ERROR}


class _Connection:
    """State of the process's connection, which all its runs share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        """Number of runs that use a connection made by a run."""


_connection = _Connection()


class RaySession:
    """One run's use of the connection. Both methods block, for ten seconds or more if Ray has to be started, so call
    them in a thread. `leave` waits for an `enter` in progress."""

    def __init__(self, cluster: str, workers: int | None) -> None:
        """`cluster`: "ray", or a ray:// address."""
        self._cluster = cluster
        self._workers = workers
        self._is_ours = False
        self._has_left = False
        self.has_started = False
        """Whether Ray was started for this run."""

    def enter(self) -> None:
        """Connects to the cluster, or starts a local one. Raises SpecError."""
        with _connection.lock:
            if self._has_left or (ray.is_initialized() and not _connection.users):
                return
            if not _connection.users:
                self.has_started = _connect(self._cluster, self._workers)
            _connection.users += 1
            self._is_ours = True

    def leave(self) -> None:
        """Ends the use, and disconnects after the last one. A second call does nothing."""
        with _connection.lock:
            self._has_left = True
            if not self._is_ours:
                return
            self._is_ours = False
            _connection.users -= 1
            if not _connection.users:
                ray.shutdown()


def is_ray_client() -> bool:
    """Whether this process is a Ray client: outside the cluster, connected through its client server."""
    return bool(ray.util.client.ray.is_connected())


def _connect(cluster: str, workers: int | None) -> bool:
    """Connects to an existing cluster, or starts a local one. Returns whether one was started."""
    address = cluster if cluster != "ray" else os.environ.get(_ADDRESS, "")
    try:
        if address and address != "local":
            _join(address)
            return False
        if not address and _join_running_cluster():
            return False
        _start(workers)
    except (ConnectionError, RuntimeError, ValueError, OSError, RayError) as error:
        ray.shutdown()  # otherwise the next run would find a half-open connection
        raise SpecError(
            f"Cannot connect to Ray{f' at {address}' if address else ''}: {error} Check that the cluster is up (ray "
            "status) and has the same versions of Ray and Python and the same RAY_AUTH_TOKEN as this process."
        ) from error
    return True


def _join(address: str) -> None:
    for remaining in reversed(range(_MAX_ATTEMPTS)):
        try:
            ray.init(address=address, **_QUIET)
        except ConnectionAbortedError:  # the server was reached, and then failed
            if not remaining:
                raise
            ray.shutdown()
        else:
            return


def _join_running_cluster() -> bool:
    try:
        ray.init(address="auto", **_QUIET)
    except ConnectionError:
        return False
    return True


def _start(workers: int | None) -> None:
    """Starts a cluster on this machine, without usage statistics."""
    cpus = max(os.cpu_count() or 1, workers or 1)
    before: dict[str, Any] = {name: os.environ.get(name) for name in _NO_STATISTICS}
    os.environ.update(_NO_STATISTICS)
    try:
        ray.init(address="local", num_cpus=cpus, include_dashboard=False, **_QUIET)
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


_NAMESPACE = "batch-agent"
_MAX_CONCURRENT_CALLS = 1000
"""Maximum number of concurrent calls to the coordinator: each worker waits for jobs and for updates."""
_CLOSE_TIMEOUT = 10.0
_JOIN_INTERVAL = 5.0
"""Seconds between queries for the cluster's nodes, by the submitter alone."""


def start_coordinator(node: str, checkpoint_dir: Path | None, **options: Any) -> Any:
    """Starts the actor of a new coordinator on this node. It ends when nothing references it any more, at the latest
    with the program that started it."""
    return (
        ray.remote(CoordinatorActor)
        .options(
            num_cpus=0,
            max_concurrency=_MAX_CONCURRENT_CALLS,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            **options,
        )
        .remote(None if checkpoint_dir is None else str(checkpoint_dir))
    )


class RayDeployment:
    """The actors of a run or a flow: workers and, unless it has a `store`, coordinators."""

    def __init__(self, setups: Sequence[RunSetup]) -> None:
        """`setups`: setup of a run, or of each stage of a flow. Raises SpecError for a spec that cannot be sent to
        workers."""
        self._setups = setups
        self._setup = setups[0]
        self._spec = spec = setups[0].spec
        assert spec.distribution.cluster is not None
        self._stages = [
            (setup.stage, serialize_spec(spec_for_workers(setup.spec), cloudpickle.dumps)) for setup in setups
        ]
        self._session = RaySession(spec.distribution.cluster, spec.distribution.workers)
        self._coordinators: dict[str, Any] = {}
        """Coordinators by stage. That of the run or the flow itself has an empty name."""
        self._are_coordinators_open = asyncio.Event()
        self._pool: WorkerPool | None = None

    async def coordinator(self, stage: str = "") -> Any:
        """The actor of the coordinator of the run or a stage, once it is open."""
        await self._are_coordinators_open.wait()
        return self._coordinators[stage]

    async def work(self) -> None:
        """Starts the actors and runs until cancelled. Raises SpecError and StoreError if it cannot start, and the last
        worker's error after all workers have failed."""
        self._setup.notify("Starting Ray ...")
        await asyncio.to_thread(self._session.enter)
        nodes, here = await asyncio.to_thread(_list_nodes)
        name = None if self._spec.distribution.store else f"coordinator-{secrets.token_hex(8)}"
        if name is not None:
            for stage, folder in self._folders():
                await self._open_coordinator(stage, f"{name}{stage}", folder, here)
            self._are_coordinators_open.set()
        assigned = assign_nodes(nodes, self._spec.distribution.workers, here)
        self._announce(nodes, len(assigned))
        self._pool = WorkerPool(assigned, name, _NAMESPACE, self._setup.notify)
        joining = _joining_nodes(nodes) if self._spec.distribution.workers is None else None
        await self._pool.work(self._stages, joining)

    async def leave(self) -> None:
        """Stops the workers, closes the coordinator and ends the use of Ray."""
        try:
            if self._pool is not None:
                await self._pool.stop()
        finally:
            try:
                for coordinator in self._coordinators.values():
                    await _close(coordinator)
            finally:
                await asyncio.to_thread(self._session.leave)

    def _folders(self) -> Iterator[tuple[str, Path | None]]:
        """Checkpoint directory of each coordinator, by stage. State that the stages of a flow share is not kept."""
        if self._setup.stage:
            yield "", None
        for setup in self._setups:
            folder = setup.spec.checkpoint_dir
            yield setup.stage, None if folder is None else folder.absolute()

    async def _open_coordinator(self, stage: str, name: str, folder: Path | None, here: str) -> None:
        coordinator = self._coordinators[stage] = start_coordinator(here, folder, name=name, namespace=_NAMESPACE)
        try:
            with _marker_file(folder) as marker:
                await call_result(coordinator.open.remote(marker))
        except RayTaskError as error:
            if isinstance(error.cause, BatchAgentError):
                raise error.cause from None
            raise
        except RayError as error:
            raise StoreError(
                f"Ray could not start the coordinator of the run on the submitter's node: {first_line(error)}"
            ) from error

    def _announce(self, nodes: list[Node], workers: int) -> None:
        notify = self._setup.notify
        state = "was started on this machine" if self._session.has_started else f"has {_count(len(nodes), 'node')}"
        notify(f"Ray {state}; {_count(workers, 'worker')} will run agents.")
        backends = [setup.spec.backend for setup in self._setups]
        endpoints = [each for backend in backends if isinstance(backend, NAMED) for each in endpoints_in(backend)]
        for url in dict.fromkeys(settings_of(each).label for each in endpoints):
            if is_loopback_per_node(url, nodes):
                notify(
                    f"{url} is a different server on each node. If it is one server, use a host name that all resolve."
                )


async def _close(coordinator: Any) -> None:
    try:
        with suppress(RayError, TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await call_result(coordinator.close.remote())
    finally:
        kill(coordinator)


def _list_nodes() -> tuple[list[Node], str]:
    """The live nodes, and the id of this process's node."""
    return live_nodes(ray.nodes()), str(ray.get_runtime_context().get_node_id())


async def _joining_nodes(nodes: Sequence[Node]) -> AsyncIterator[tuple[Node, int]]:
    """Nodes that join the cluster from now on, each with the number of nodes at that time. Polls, because Ray announces
    none."""
    known = {node.id for node in nodes if node.cpus >= WORKER_CPUS}
    while True:
        await asyncio.sleep(_JOIN_INTERVAL)
        listed, _ = await asyncio.to_thread(_list_nodes)
        for node in joined_nodes(listed, known):
            yield node, sum(each.cpus >= WORKER_CPUS for each in listed)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


@contextmanager
def _marker_file(folder: Path | None) -> Iterator[str | None]:
    """Temporary file in the folder, by which the coordinator checks that it is on the same file system. None if this
    process is on the cluster."""
    if folder is None or not is_ray_client():
        yield None
        return
    folder.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=folder, prefix="caller-") as file:
        yield file.name
