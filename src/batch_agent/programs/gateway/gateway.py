"""The gateway of a run."""

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
    """Where programs reach the model, and who of them may."""

    url: str
    """Without a path."""
    guests: ClientSessions

    def admit(self, agent: str, hides: Mapping[str, str]) -> str:
        """The key with which the program of `agent` asks, until it is dismissed; asked again, the same. `hides`: texts
        of this agent alone, and what the model reads in their place."""
        return self.guests.admit(agent, hides)

    def dismiss(self, agent: str) -> None:
        """Its key is of no more use, its requests are cancelled, and what the model said to it is forgotten."""
        self.guests.dismiss(agent)


@asynccontextmanager
async def open_gateway(desk: CompletionService, pace: StreamPace | None = None) -> AsyncIterator[Gateway]:
    """Listens on this machine alone for as long as the block runs; what is under way at its end is cancelled."""
    guests = ClientSessions()
    app = application(Handlers(desk, guests, pace or StreamPace()))
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield Gateway(f"http://127.0.0.1:{runner.addresses[0][1]}", guests)
    finally:
        guests.dismiss_all()
        await runner.cleanup()
