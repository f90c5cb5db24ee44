"""OpenCode for a run, one program for all agents: a session for each, which works in the agent's own folder."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

from ....core.errors import SpecError
from ....core.fast_dataclass import dataclass
from ....core.messages import Message
from ....core.program_runtime import ProgramFailed, ProgramResult, SessionFactory
from ...workspace.workspace import Workspace, WorkspaceRoot
from .cli import refused_config
from .client import OpenCodeClient
from .config import write_config
from .messages import answered
from .orphans import kill_orphans

_MOST_STARTS = 4


class ServerRestarter:
    """Has a server there for whoever asks: when the last one ended, another one."""

    def __init__(self, start: Callable[[], AbstractAsyncContextManager[OpenCodeClient]], stack: AsyncExitStack) -> None:
        self._start = start
        self._stack = stack
        self._one_at_a_time = asyncio.Lock()
        self._starts = 0
        self._current: OpenCodeClient | None = None
        self._ends_current = AsyncExitStack()

    async def server(self) -> OpenCodeClient:
        """Raises SpecError, and ProgramFailed after it ended too often."""
        async with self._one_at_a_time:
            if self._current is None or await self._current.is_over():
                await self._another()
            assert self._current is not None
            return self._current

    async def _another(self) -> None:
        if self._starts == _MOST_STARTS:
            raise ProgramFailed(f"`opencode serve` ended {_MOST_STARTS} times in this run: it is not started again.")
        self._current = None
        await self._ends_current.aclose()
        self._starts += 1
        self._ends_current = await self._stack.enter_async_context(AsyncExitStack())
        self._current = await self._ends_current.enter_async_context(self._start())


@asynccontextmanager
async def serve_sessions(
    workshop: WorkspaceRoot, start: Callable[[], AbstractAsyncContextManager[OpenCodeClient]], probe: Path
) -> AsyncIterator[SessionFactory]:
    """`probe`: an agent's folder without an agent, to see whether the configuration is taken. Raises SpecError."""
    async with AsyncExitStack() as stack:
        watch = ServerRestarter(start, stack)
        server = await watch.server()
        await _check(server, probe)
        yield ServeSessions(workshop, watch)


async def _check(server: OpenCodeClient, probe: Path) -> None:
    try:
        await server.check_config(probe)
        await server.forget(probe)
    except ProgramFailed as failed:
        raise refused_config(str(failed)) from failed


@dataclass(frozen=True, slots=True)
class ServeSessions:
    """Agents that share a server."""

    workshop: WorkspaceRoot
    watch: ServerRestarter

    async def open_session(self, agent: str) -> "ServeSession":
        try:
            server = await self.watch.server()
        except SpecError as error:
            raise ProgramFailed(str(error), retryable=True) from error
        place = await self.workshop.place(agent)
        await place.furnish(lambda: write_config(place.folder, place.address))
        try:
            return ServeSession(place, server, await server.session(place.folder))
        except BaseException:
            await _leave(server, place)
            raise


@dataclass(slots=True)
class ServeSession:
    """One agent: a folder, a session."""

    place: Workspace
    server: OpenCodeClient
    session: str
    _transcript: Sequence[Message] = ()
    _known: int = 0
    """So many messages of the session were told before."""

    async def prompt(self, text: str) -> ProgramResult:
        place, server = self.place, self.server
        try:
            await server.say(place.folder, self.session, place.address.model, text)
        except BaseException:
            await self._stop()
            raise
        messages = await server.messages(place.folder, self.session)
        got = answered(self._transcript, messages[self._known :])
        self._known, self._transcript = len(messages), got.transcript
        await kill_orphans(place.beside)
        return replace(got, text=place.from_here(got.text), changes=await place.changes())

    async def aclose(self) -> None:
        await _leave(self.server, self.place)

    async def _stop(self) -> None:
        """A server that cannot be told is of no more use to the others either."""
        try:
            await self.server.abort(self.place.folder, self.session)
        except ProgramFailed:
            self.server.give_up()
        finally:
            await kill_orphans(self.place.beside)


async def _leave(server: OpenCodeClient, place: Workspace) -> None:
    with suppress(ProgramFailed):
        await server.forget(place.folder)
    await kill_orphans(place.beside)
    await place.leave()
