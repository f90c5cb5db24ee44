"""Ray actor that runs a worker of a run."""

import asyncio
import secrets
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any

import ray

from ..cluster.coordinator_address import coordinator_of, flow_coordinators
from ..core.errors import BatchAgentError, SpecError
from ..run import runner
from ..run.setup import RunSetup
from ..version import __version__
from .ray_coordinator import RayCoordinator
from .serialization import RemoteError, deserialize_spec

Stages = Sequence[tuple[str, bytes]]


def check_version(caller: str) -> None:
    """Raises SpecError if this node has another version of batch-agent than the submitter."""
    if __version__ != caller:
        host = socket.gethostname()
        raise SpecError(
            f"Node {host!r} has batch-agent {__version__}, the submitter has {caller}. Install the same "
            "version on both."
        )


class WorkerActor:
    """Worker in an actor. If its process or node fails, Ray restarts it on any node, and it joins the run as a new
    worker with the same rank."""

    def __init__(self, rank: str, coordinator_name: str | None, namespace: str) -> None:
        """`coordinator_name`: name of the coordinator's actor; None if the spec names a server."""
        self._rank = rank
        self._coordinator_name = coordinator_name
        self._namespace = namespace
        self._process = secrets.token_hex(8)
        self._timeout: asyncio.Timeout | None = None
        self._is_stopped = False
        self._is_done = asyncio.Event()
        self._failure: RemoteError | None = None

    async def location(self) -> tuple[str, str, str]:
        """Id of this process, its host name and the id of its node. Returns once Ray has scheduled the actor."""
        return self._process, socket.gethostname(), str(ray.get_runtime_context().get_node_id())

    async def wait_for_exit(self) -> None:
        """Blocks until the process ends, so that the caller notices a restart."""
        await asyncio.Event().wait()

    async def work(self, stages: Stages, caller: str) -> RemoteError | None:
        """Runs agents until it is stopped or no submitter has work. `stages`: name and serialized spec of each stage of
        a flow; for a run, its spec under an empty name. Returns the error if it failed. Ray may repeat the call after a
        network failure; the repeated call waits for the first one."""
        if self._timeout is not None:
            await self._is_done.wait()
            return self._failure
        self._is_done.clear()
        self._failure = None
        try:
            await self._run_until_stopped(stages, caller)
        except BatchAgentError as error:
            self._failure = RemoteError.of(error)
        finally:
            self._timeout = None
            self._is_done.set()
        return self._failure

    async def stop(self) -> None:
        """Stops the worker. Returns after its leases are released and its tool servers are closed."""
        self._is_stopped = True
        if self._timeout is not None:
            self._timeout.reschedule(0)
            await self._is_done.wait()

    async def _run_until_stopped(self, stages: Stages, caller: str) -> None:
        try:
            async with asyncio.timeout(None) as self._timeout:
                if not self._is_stopped:
                    await self._work(stages, caller)
        except TimeoutError:
            if not self._is_stopped:
                raise

    async def _work(self, stages: Stages, caller: str) -> None:
        check_version(caller)
        setups = [RunSetup.validate(deserialize_spec(data), None, stage) for stage, data in stages]
        if not setups[0].stage:
            await runner.work(setups[0], coordinator_of(setups[0].spec) or self._in_actor(""))
            return
        flow, runs = flow_coordinators([each.spec for each in setups]) or (
            self._in_actor(""),
            [self._in_actor(each.stage) for each in setups],
        )
        await runner.work_for_flow(setups, None, flow, runs)

    def _in_actor(self, stage: str) -> RayCoordinator:
        return RayCoordinator(partial(self._find_coordinator, stage), self._rank)

    async def _find_coordinator(self, stage: str) -> Any:
        return await asyncio.to_thread(ray.get_actor, f"{self._coordinator_name}{stage}", self._namespace)
