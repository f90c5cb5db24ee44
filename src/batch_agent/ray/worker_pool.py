"""Pool of the workers of a run on a Ray cluster, as the submitter sees it."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ..core.errors import BatchAgentError, ErrorKind
from ..core.run_failure import RunStopped
from .actor_calls import call_result, first_line, kill
from .node_assignment import WORKER_CPUS, Node
from .worker_actor import WorkerActor, own_version

_MAX_RESTARTS = 100
"""Restarts of one worker. Ray does not count restarts after the preemption of a node."""
_PENDING_NOTICE_AFTER = 30.0
"""Seconds after which a notice says why workers have not started."""
_STOP_TIMEOUT = 10.0
"""Seconds for workers to release their leases."""
_POLL_INTERVAL = 1.0

Notify = Callable[[str], None]


class WorkerPool:
    """One worker for each rank. When a worker fails, the others continue; when all have failed, so has the run."""

    def __init__(
        self, nodes: Sequence[Node | None], coordinator_name: str | None, namespace: str, notify: Notify
    ) -> None:
        self._notify = notify
        self._workers = {
            str(number): _worker(node, str(number), coordinator_name, namespace) for number, node in enumerate(nodes, 1)
        }
        self._started: set[str] = set()
        self._failed = 0

    async def work(self, stages: Sequence[tuple[str, bytes]]) -> None:
        """Runs the workers until cancelled. `stages`: as for `WorkerActor.work`. Raises the error of the last one when
        all have failed."""
        sent = ray.put(stages)
        async with asyncio.TaskGroup() as group:
            for rank in self._workers:
                group.create_task(self._follow(rank, sent))
            await asyncio.sleep(_PENDING_NOTICE_AFTER)
            if pending := len(self._workers) - len(self._started):
                self._notify(
                    f"{pending} of {len(self._workers)} workers have not started yet: each needs {WORKER_CPUS} "
                    "free CPU on a node."
                )

    async def stop(self) -> None:
        """Stops the workers, and kills those that do not stop in time, or all at once if cancelled."""
        stops = [self._workers[rank].stop.remote() for rank in self._started]
        try:
            async with asyncio.timeout(_STOP_TIMEOUT):
                for each in stops:
                    with suppress(RayError):
                        await call_result(each)
        except TimeoutError:
            self._notify("Some workers did not stop in time and were killed.")
        finally:
            for worker in self._workers.values():
                kill(worker)

    async def _follow(self, rank: str, sent: Any) -> None:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch(rank))
            error = await self._failure(rank, sent)
            watching.cancel()
        self._remove(rank, error)

    async def _failure(self, rank: str, sent: Any) -> BatchAgentError:
        worker = self._workers[rank]
        try:
            error = await call_result(worker.work.remote(sent, own_version()))
            while error is None:  # there was no work: the submitter has not submitted jobs yet
                await asyncio.sleep(_POLL_INTERVAL)
                error = await call_result(worker.work.remote(sent, own_version()))
        except RayError as lost:
            return RunStopped(ErrorKind.INTERNAL, f"Ray has lost worker {rank}: {first_line(lost)}")
        failure: BatchAgentError = error.error()
        return failure

    async def _watch(self, rank: str) -> None:
        """Notifies when Ray has restarted the worker. Ray repeats the interrupted `work` call by itself."""
        worker, previous = self._workers[rank], ""
        with suppress(RayError):  # the worker is lost: `_failure` reports it
            while True:
                process, host = await call_result(worker.location.remote())
                self._started.add(rank)
                if previous not in ("", process):
                    self._notify(f"Worker {rank} failed; Ray has restarted it on {host}.")
                previous = process
                with suppress(RayActorError):
                    await call_result(worker.wait_for_exit.options(max_task_retries=0).remote())
                self._started.discard(rank)
                await asyncio.sleep(_POLL_INTERVAL)

    def _remove(self, rank: str, error: BatchAgentError) -> None:
        self._started.discard(rank)
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
