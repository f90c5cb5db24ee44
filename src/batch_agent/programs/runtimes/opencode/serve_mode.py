"""Serve mode of OpenCode: one server for all agents, with a session per agent.

Also kills processes that an agent's commands leave behind. OpenCode kills a command with its process group; a process
that has left the group survives, as a child of a server that other agents still use."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

from ....core.errors import SpecError
from ....core.fast_dataclass import dataclass
from ....core.messages import Message
from ....core.program_runtime import ProgramFailed, ProgramResult, SessionFactory
from ...workspace.workspace import Workspace, WorkspaceRoot
from .home import MARK
from .opencode_client import OpenCodeClient
from .opencode_config import OPENCODE, write_config
from .session_messages import to_result

_KILL_ATTEMPTS = 20
_POLL_INTERVAL = 0.05  # no event announces the exit of a process that is not our child


async def kill_orphans(private_dir: Path) -> None:
    """Kills every process that was started from a directory in `private_dir`. Does nothing on systems where processes
    do not expose their environment, such as macOS; there they end with the run."""
    if sys.platform == "linux":
        await asyncio.to_thread(_kill_all, os.fsencode(f"{MARK}={private_dir}{os.sep}"))


def _kill_all(mark: bytes) -> None:
    """Kills repeatedly, because a process may start another one before it is killed."""
    for _ in range(_KILL_ATTEMPTS):
        found = [pid for pid in _processes() if _is_marked(pid, mark)]
        for pid in found:
            _kill(pid, mark)
        if not found:
            return
        time.sleep(_POLL_INTERVAL)


def _processes() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid())


def _is_marked(pid: int, mark: bytes) -> bool:
    """Whether a process has the mark. A process that has ended or belongs to another user shows nothing."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            return any(entry.startswith(mark) for entry in environ.read().split(b"\0"))
    except OSError:
        return False


def _kill(pid: int, mark: bytes) -> None:
    """Kills a process that still has the mark. The pid may have been reused, so the mark is checked with an open
    handle."""
    with suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            if _is_marked(pid, mark):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


_MAX_STARTS = 4


class ServerRestarter:
    """Provides a running server, and starts another one after it has exited."""

    def __init__(self, start: Callable[[], AbstractAsyncContextManager[OpenCodeClient]], stack: AsyncExitStack) -> None:
        self._start = start
        self._stack = stack
        self._lock = asyncio.Lock()
        self._starts = 0
        self._current: OpenCodeClient | None = None
        self._current_stack = AsyncExitStack()

    async def server(self) -> OpenCodeClient:
        """The running server. Raises SpecError, and ProgramFailed if servers exited too often."""
        async with self._lock:
            if self._current is None or await self._current.is_unusable():
                await self._restart()
            assert self._current is not None
            return self._current

    async def _restart(self) -> None:
        if self._starts == _MAX_STARTS:
            raise ProgramFailed(f"`opencode serve` exited {_MAX_STARTS} times in this run and is not restarted.")
        self._current = None
        await self._current_stack.aclose()
        self._starts += 1
        self._current_stack = await self._stack.enter_async_context(AsyncExitStack())
        self._current = await self._current_stack.enter_async_context(self._start())


@asynccontextmanager
async def serve_sessions(
    workspaces: WorkspaceRoot, start: Callable[[], AbstractAsyncContextManager[OpenCodeClient]], probe: Path
) -> AsyncIterator[SessionFactory]:
    """`probe`: a stand-in for an agent's directory, to check the configuration. Raises SpecError."""
    async with AsyncExitStack() as stack:
        restarter = ServerRestarter(start, stack)
        server = await restarter.server()
        await _check(server, probe)
        yield ServeSessions(workspaces, restarter)


async def _check(server: OpenCodeClient, probe: Path) -> None:
    try:
        await server.check_config(probe)
        await server.dispose(probe)
    except ProgramFailed as to_failure:
        raise OPENCODE.rejected_config(str(to_failure)) from to_failure


@dataclass(frozen=True, slots=True)
class ServeSessions:
    """Session factory. Sessions share a server."""

    workspaces: WorkspaceRoot
    restarter: ServerRestarter

    async def open_session(self, agent: str) -> "ServeSession":
        try:
            server = await self.restarter.server()
        except SpecError as error:
            raise ProgramFailed(str(error), retryable=True) from error
        workspace = await self.workspaces.create(agent)
        await workspace.write_files(lambda: write_config(workspace.folder, workspace.address))
        try:
            return ServeSession(workspace, server, await server.session(workspace.folder))
        except BaseException:
            await _close(server, workspace)
            raise


@dataclass(slots=True)
class ServeSession:
    """One agent's workspace and session."""

    workspace: Workspace
    server: OpenCodeClient
    session: str
    _transcript: Sequence[Message] = ()
    _seen: int = 0
    """Number of the session's messages that earlier results have covered."""

    async def prompt(self, text: str) -> ProgramResult:
        workspace, server = self.workspace, self.server
        try:
            await server.prompt(workspace.folder, self.session, workspace.address.model, text)
        except BaseException:
            await self._stop()
            raise
        messages = await server.messages(workspace.folder, self.session)
        result = to_result(self._transcript, messages[self._seen :])
        self._seen, self._transcript = len(messages), result.transcript
        await kill_orphans(workspace.private_dir)
        return replace(result, text=workspace.relativize(result.text), changes=await workspace.changes())

    async def aclose(self) -> None:
        await _close(self.server, self.workspace)

    async def _stop(self) -> None:
        """Stops the session's work. A server that does not respond is abandoned, for other agents too."""
        try:
            await self.server.abort(self.workspace.folder, self.session)
        except ProgramFailed:
            self.server.abandon()
        finally:
            await kill_orphans(self.workspace.private_dir)


async def _close(server: OpenCodeClient, workspace: Workspace) -> None:
    with suppress(ProgramFailed):
        await server.dispose(workspace.folder)
    await kill_orphans(workspace.private_dir)
    await workspace.remove()
