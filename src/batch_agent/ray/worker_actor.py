"""A worker of a run, in an actor of a Ray cluster."""

import asyncio
import secrets
import socket
from importlib.metadata import version
from typing import Any

import ray

from ..cluster.coordinator_address import coordinator_of
from ..core.coordinator import Coordinator
from ..core.errors import BatchAgentError, SpecError
from ..core.spec import BatchSpec
from ..run import runner
from ..run.setup import RunSetup
from .ray_coordinator import RayCoordinator
from .remote_error import RemoteError
from .serialization import unpacked


def own_version() -> str:
    return version("batch-agent")


class WorkerActor:
    """Runs the ordinary engine. Ray starts it anew, here or elsewhere, when its process or its node is gone: then it
    joins the run under another name."""

    def __init__(self, seat: str, coordinator_name: str | None, namespace: str) -> None:
        """`coordinator_name`: the actor that is the run's hub; None where the spec says which server is."""
        self._seat = seat
        self._coordinator_name = coordinator_name
        self._namespace = namespace
        self._process = secrets.token_hex(8)
        self._working: asyncio.Timeout | None = None
        self._is_stopped = False
        self._is_done = asyncio.Event()
        self._failure: RemoteError | None = None

    async def whereabouts(self) -> tuple[str, str]:
        """Which process this is, and where, once Ray has found a place for it."""
        return self._process, socket.gethostname()

    async def stay(self) -> None:
        """For as long as this process is there."""
        await asyncio.Event().wait()

    async def work(self, data: bytes, caller: str) -> RemoteError | None:
        """Until it is stopped, or nobody asks for anything. Gives how it failed, if it did. Ray may repeat the call
        when the network fails: who is at work stays the only one here."""
        if self._working is not None:
            await self._is_done.wait()
            return self._failure
        self._is_done.clear()
        self._failure = None
        try:
            await self._drive(data, caller)
        except BatchAgentError as error:
            self._failure = RemoteError.of(error)
        finally:
            self._working = None
            self._is_done.set()
        return self._failure

    async def stop(self) -> None:
        """Returns when what was begun is given back, and servers of tools are closed."""
        self._is_stopped = True
        if self._working is not None:
            self._working.reschedule(0)
            await self._is_done.wait()

    async def _drive(self, data: bytes, caller: str) -> None:
        try:
            async with asyncio.timeout(None) as self._working:
                if not self._is_stopped:
                    await self._work(data, caller)
        except TimeoutError:
            if not self._is_stopped:
                raise

    async def _work(self, data: bytes, caller: str) -> None:
        if own_version() != caller:
            here = socket.gethostname()
            raise SpecError(f"{here} has batch-agent {own_version()}, the caller {caller}: install one everywhere.")
        spec = unpacked(data)
        await runner.work(RunSetup.validate(spec, None), self._coordinator(spec))

    def _coordinator(self, spec: BatchSpec) -> Coordinator:
        return coordinator_of(spec) or RayCoordinator(self._find_coordinator, self._seat)

    async def _find_coordinator(self) -> Any:
        return await asyncio.to_thread(ray.get_actor, self._coordinator_name, self._namespace)
