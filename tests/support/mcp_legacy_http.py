"""The MCP server of the protocol before 2026 over HTTP, served to tests from their own process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from tests.support.mcp_legacy_server import answer


@dataclass(frozen=True)
class Answer:
    status: int
    body: str = ""
    content_type: str = "text/plain"
    is_packed: bool = False

    def response(self) -> web.Response:
        response = web.Response(status=self.status, text=self.body, content_type=self.content_type)
        if self.is_packed:
            response.enable_compression(web.ContentCoding.gzip)
        return response


@dataclass
class Served:
    url: str = ""
    sessions: set[str] = field(default_factory=set)
    """Those that it knows."""
    keys: list[str] = field(default_factory=list)
    """What every request said as X-Key."""
    farewell: asyncio.Event = field(default_factory=asyncio.Event)
    refusal: Answer = field(default_factory=lambda: Answer(404))
    """To a session that it does not know."""
    refused_tools: dict[str, Answer] = field(default_factory=dict)
    """What calls of these get, in any session."""
    called: list[str] = field(default_factory=list)
    """Texts that reached a tool."""
    initialized: int = 0
    held: asyncio.Event = field(default_factory=asyncio.Event)
    """A call waits for its release."""
    _holds: dict[str, asyncio.Event] = field(default_factory=dict)

    def hold(self, tool: str) -> asyncio.Event:
        """The next call of this tool is answered when the event is set."""
        self._holds[tool] = asyncio.Event()
        return self._holds[tool]

    async def wait(self, tool: str) -> None:
        release = self._holds.pop(tool, None)
        if release is not None:
            self.held.set()
            await release.wait()


@asynccontextmanager
async def over_http() -> AsyncIterator[Served]:
    """It answers to a farewell only when it ends."""
    served, is_ending = Served(), asyncio.Event()

    async def post(request: web.Request) -> web.Response:
        served.keys.append(request.headers.get("X-Key", ""))
        message = await request.json()
        given = answer(message)
        if message["method"] == "initialize":
            session = f"session-{len(served.keys)}"
            served.initialized += 1
            served.sessions.add(session)
            return web.json_response(given, headers={"Mcp-Session-Id": session})
        if request.headers.get("Mcp-Session-Id") not in served.sessions:
            return served.refusal.response()
        if message["method"] == "tools/call":
            if (refused := served.refused_tools.get(message["params"]["name"])) is not None:
                return refused.response()
            await served.wait(message["params"]["name"])
            served.called.append(message["params"]["arguments"].get("text", ""))
        return web.Response(status=202) if given is None else web.json_response(given)

    async def delete(request: web.Request) -> web.Response:
        served.farewell.set()
        await is_ending.wait()
        return web.Response()

    app = web.Application()
    app.router.add_post("/mcp", post)
    app.router.add_delete("/mcp", delete)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        served.url = f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
        yield served
    finally:
        is_ending.set()
        await runner.cleanup()
