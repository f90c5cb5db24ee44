"""Pool of the workers of a run on a Ray cluster, as seen by the submitter."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ..core.errors import BatchAgentError, ErrorKind
from ..core.run_failure import RunStopped
from ..version import __version__
from .actor_calls import call_result, first_line, kill
from .node_assignment import WORKER_CPUS, Node, crowded_worker
from .worker_actor import WorkerActor

_MAX_RESTARTS = 100
"""Maximum restarts of one worker. Ray does not count restarts after the preemption of a node."""
_PENDING_NOTICE_AFTER = 30.0
"""Seconds after which a notice says why workers have not started."""
_STOP_TIMEOUT = 10.0
"""Seconds for workers to release their leases."""
_POLL_INTERVAL = 1.0

Notify = Callable[[str], None]


class WorkerPool:
    """One worker for each rank. If a worker fails, the others continue; if all fail, so does the run."""

    def __init__(
        self, nodes: Sequence[Node | None], coordinator_name: str | None, namespace: str, notify: Notify
    ) -> None:
        self._notify = notify
        self._ranks = itertools.count(1)
        self._start: Callable[[Node | None, str], Any] = lambda node, rank: _worker(
            node, rank, coordinator_name, namespace
        )
        self._workers: dict[str, Any] = {}
        self._started: dict[str, str] = {}
        """Running workers, each with the id of its node."""
        self._retired: set[str] = set()
        self._failed = 0
        for node in nodes:
            self._add(node)

    async def work(
        self, stages: Sequence[tuple[str, bytes]], joining: AsyncIterator[tuple[Node, int]] | None = None
    ) -> None:
        """Runs the workers until cancelled. `stages`: as for `WorkerActor.work`. `joining`: nodes that join the cluster
        and also get workers, each with the number of nodes at that time. Raises the error of the last worker after all
        have failed."""
        sent = ray.put(stages)
        async with asyncio.TaskGroup() as group:
            for rank in self._workers:
                group.create_task(self._follow(rank, sent))
            group.create_task(self._report_pending())
            if joining is not None:
                async for node, nodes in joining:
                    if self._makes_room(group, nodes):
                        self._notify(f"Node {node.address} has joined; it gets a worker.")
                        group.create_task(self._follow(self._add(node), sent))

    async def _report_pending(self) -> None:
        await asyncio.sleep(_PENDING_NOTICE_AFTER)
        if pending := len(self._workers) - len(self._started):
            self._notify(
                f"{pending} of {len(self._workers)} workers have not started yet: each needs {WORKER_CPUS} free CPU "
                "on a node."
            )

    def _makes_room(self, group: asyncio.TaskGroup, nodes: int) -> bool:
        """Whether a node that has joined gets another worker. A worker that Ray has not restarted yet, because its node
        was lost, starts there by itself; a worker that shares another's node moves."""
        if len(self._started) < len(self._workers):
            return False
        crowded = crowded_worker(self._started)
        if crowded is not None:
            self._retired.add(crowded)
            group.create_task(self._stop([crowded]))
        return crowded is not None or len(self._workers) < nodes

    def _add(self, node: Node | None) -> str:
        rank = str(next(self._ranks))
        self._workers[rank] = self._start(node, rank)
        return rank

    async def stop(self) -> None:
        """Stops the workers. Kills those that do not stop in time, or all at once if cancelled."""
        try:
            await self._stop(list(self._started))
        finally:
            for worker in self._workers.values():
                kill(worker)

    async def _stop(self, ranks: Sequence[str]) -> None:
        """Stops these workers, which releases their leases, and kills them."""
        workers = [self._workers[rank] for rank in ranks]
        stops = [worker.stop.remote() for worker in workers]
        try:
            async with asyncio.timeout(_STOP_TIMEOUT):
                for each in stops:
                    with suppress(RayError):
                        await call_result(each)
        except TimeoutError:
            self._notify("Some workers did not stop in time and were killed.")
        finally:
            for worker in workers:
                kill(worker)

    async def _follow(self, rank: str, sent: Any) -> None:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch(rank))
            error = await self._failure(rank, sent)
            watching.cancel()
        if rank in self._retired:
            del self._workers[rank]
            self._started.pop(rank, None)
        else:
            self._remove(rank, error)

    async def _failure(self, rank: str, sent: Any) -> BatchAgentError:
        worker = self._workers[rank]
        try:
            error = await call_result(worker.work.remote(sent, __version__))
            while error is None:  # no work: either the submitter has not submitted jobs yet, or the worker is retired
                await asyncio.sleep(_POLL_INTERVAL)
                error = await call_result(worker.work.remote(sent, __version__))
        except RayError as lost:
            return RunStopped(ErrorKind.INTERNAL, f"Ray has lost worker {rank}: {first_line(lost)}")
        failure: BatchAgentError = error.error()
        return failure

    async def _watch(self, rank: str) -> None:
        """Reports when Ray has restarted the worker. Ray itself repeats the interrupted `work` call."""
        worker, previous = self._workers[rank], ""
        with suppress(RayError):  # the worker is lost: `_failure` reports it
            while True:
                process, host, self._started[rank] = await call_result(worker.location.remote())
                if previous not in ("", process):
                    self._notify(f"Worker {rank} failed; Ray has restarted it on {host}.")
                previous = process
                with suppress(RayActorError):
                    await call_result(worker.wait_for_exit.options(max_task_retries=0).remote())
                self._started.pop(rank, None)
                await asyncio.sleep(_POLL_INTERVAL)

    def _remove(self, rank: str, error: BatchAgentError) -> None:
        self._started.pop(rank, None)
        kill(self._workers[rank])  # frees its CPU
        self._failed += 1
        if self._failed == len(self._workers):
            raise error
        self._notify(f"Worker {rank} of {len(self._workers)} failed, the others continue without it: {error}")


def _worker(node: Node | None, rank: str, coordinator_name: str | None, namespace: str) -> Any:
    strategy = "SPREAD" if node is None else NodeAffinitySchedulingStrategy(node.id, soft=True)
    options = {
        "num_cpus": WORKER_CPUS,
        "max_restarts": _MAX_RESTARTS,
        "max_task_retries": -1,
        "scheduling_strategy": strategy,
    }
    return ray.remote(WorkerActor).options(**options).remote(rank, coordinator_name, namespace)
