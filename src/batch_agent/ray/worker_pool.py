"""The workers of a run on a Ray cluster, as their caller sees them."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ..core.errors import BatchAgentError, ErrorKind
from ..core.run_failure import RunStopped
from .actor_calls import answer, first_line, kill
from .node_assignment import CPUS, Node
from .worker_actor import WorkerActor, own_version

_MOST_RESTARTS = 100
"""Of one worker. That of a node which was taken away does not count."""
_PATIENCE = 30.0
"""Seconds after which whoever waits for workers is told why."""
_FAREWELL = 10.0
"""Seconds for workers to give back what they have."""
_PAUSE = 1.0

Notify = Callable[[str], None]


class WorkerPool:
    """One worker for each seat. A worker that fails is missed, and the others go on; when all have, the run has."""

    def __init__(
        self, seats: Sequence[Node | None], coordinator_name: str | None, namespace: str, notify: Notify
    ) -> None:
        self._notify = notify
        self._workers = {
            str(number): _worker(seat, str(number), coordinator_name, namespace) for number, seat in enumerate(seats, 1)
        }
        self._placed: set[str] = set()
        self._failed = 0

    async def work(self, data: bytes) -> None:
        """Until it is cancelled. Raises how the last one failed, when all have."""
        sent = ray.put(data)
        async with asyncio.TaskGroup() as group:
            for seat in self._workers:
                group.create_task(self._follow(seat, sent))
            await asyncio.sleep(_PATIENCE)
            if waiting := len(self._workers) - len(self._placed):
                self._notify(
                    f"{waiting} of {len(self._workers)} workers have no place yet: each needs {CPUS} CPU that is free "
                    "on a node."
                )

    async def dismiss(self) -> None:
        """Cancelled, it does not wait for them."""
        leaving = [self._workers[seat].stop.remote() for seat in self._placed]
        try:
            async with asyncio.timeout(_FAREWELL):
                for each in leaving:
                    with suppress(RayError):
                        await answer(each)
        except TimeoutError:
            self._notify("Some workers did not end in time, and are killed.")
        finally:
            for worker in self._workers.values():
                kill(worker)

    async def _follow(self, seat: str, sent: Any) -> None:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch(seat))
            error = await self._failure(seat, sent)
            watching.cancel()
        self._miss(seat, error)

    async def _failure(self, seat: str, sent: Any) -> BatchAgentError:
        worker = self._workers[seat]
        try:
            told = await answer(worker.work.remote(sent, own_version()))
            while told is None:  # nobody asked for anything: the caller has not begun yet
                await asyncio.sleep(_PAUSE)
                told = await answer(worker.work.remote(sent, own_version()))
        except RayError as error:
            return RunStopped(ErrorKind.INTERNAL, f"Ray has lost worker {seat}: {first_line(error)}")
        failure: BatchAgentError = told.error()
        return failure

    async def _watch(self, seat: str) -> None:
        """Tells when Ray has started it anew. What it worked on, Ray gives it again by itself."""
        worker, before = self._workers[seat], ""
        with suppress(RayError):  # it is lost for good, as whoever waits for its work hears
            while True:
                here, host = await answer(worker.whereabouts.remote())
                self._placed.add(seat)
                if before not in ("", here):
                    self._notify(f"Worker {seat} was gone; Ray has started it anew, on {host}.")
                before = here
                with suppress(RayActorError):
                    await answer(worker.stay.options(max_task_retries=0).remote())
                self._placed.discard(seat)
                await asyncio.sleep(_PAUSE)

    def _miss(self, seat: str, error: BatchAgentError) -> None:
        self._placed.discard(seat)
        kill(self._workers[seat])  # its CPU is of use to others
        self._failed += 1
        if self._failed == len(self._workers):
            raise error
        self._notify(f"Worker {seat} of {len(self._workers)} has failed, and the others go on without it: {error}")


def _worker(seat: Node | None, name: str, coordinator_name: str | None, namespace: str) -> Any:
    where = "SPREAD" if seat is None else NodeAffinitySchedulingStrategy(seat.id, soft=True)
    options = {"num_cpus": CPUS, "max_restarts": _MOST_RESTARTS, "max_task_retries": -1, "scheduling_strategy": where}
    return ray.remote(WorkerActor).options(**options).remote(name, coordinator_name, namespace)
