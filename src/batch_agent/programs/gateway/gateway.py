"""The HTTP server of the gateway."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

from ...core.fast_dataclass import dataclass
from ...core.program_runtime import CompletionService
from .handlers import Handlers
from .responses import StreamPace
from .routes import application
from .sessions import ClientSessions


@dataclass(frozen=True, slots=True)
class Gateway:
    """Address of the gateway, and the programs that may use it."""

    url: str
    """Without a path."""
    sessions: ClientSessions

    def admit(self, agent: str, hides: Mapping[str, str]) -> str:
        """Returns the API key for the program of `agent`, valid until `dismiss`; the same one if called again. `hides`
        maps strings that only this agent has, such as its directory, to what the model reads instead."""
        return self.sessions.admit(agent, hides)

    def dismiss(self, agent: str) -> None:
        """Revokes the agent's key, cancels its requests and forgets the replies it received."""
        self.sessions.dismiss(agent)


@asynccontextmanager
async def open_gateway(service: CompletionService, pace: StreamPace | None = None) -> AsyncIterator[Gateway]:
    """Listens on the loopback interface while the block runs; requests in progress at its end are cancelled."""
    sessions = ClientSessions()
    app = application(Handlers(service, sessions, pace or StreamPace()))
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield Gateway(f"http://127.0.0.1:{runner.addresses[0][1]}", sessions)
    finally:
        sessions.dismiss_all()
        await runner.cleanup()
