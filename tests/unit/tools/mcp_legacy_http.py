"""The MCP server of the protocol before 2026 over HTTP, served to tests from their own process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from tests.unit.tools.mcp_legacy_server import answer


@dataclass
class Served:
    url: str = ""
    sessions: set[str] = field(default_factory=set)
    """Those that it knows."""
    keys: list[str] = field(default_factory=list)
    """What every request said as X-Key."""
    farewell: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def over_http() -> AsyncIterator[Served]:
    """It never answers to a farewell."""
    served = Served()

    async def post(request: web.Request) -> web.Response:
        served.keys.append(request.headers.get("X-Key", ""))
        message = await request.json()
        given = answer(message)
        if message["method"] == "initialize":
            session = f"session-{len(served.keys)}"
            served.sessions.add(session)
            return web.json_response(given, headers={"Mcp-Session-Id": session})
        if request.headers.get("Mcp-Session-Id") not in served.sessions:
            return web.Response(status=404)
        return web.Response(status=202) if given is None else web.json_response(given)

    async def delete(request: web.Request) -> web.Response:
        served.farewell.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

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
        await runner.cleanup()
