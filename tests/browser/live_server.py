"""A server of a live page whose run changes when the test says so."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
from aiohttp import web
from tests.browser.run_views import Model

from batch_agent.observe.report.html import INDEX, page_files


class Served:
    """What the page is told. `asked` is what it asked for."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.port = 0
        self.asked: list[str] = []
        self.is_broken = False
        self._listeners: list[asyncio.Queue[None]] = []

    def change(self, model: Model) -> None:
        """The run has changed, and whoever listens hears of it."""
        self.model = model
        for queue in self._listeners:
            queue.put_nowait(None)

    async def page(self, request: web.Request) -> web.Response:
        kind, text = page_files()[request.match_info.get("name", INDEX)]
        return web.Response(text=text, content_type=kind)

    async def run(self, request: web.Request) -> web.Response:
        self.asked.append(request.path_qs)
        if self.is_broken:
            return web.Response(status=503, text="The log cannot be read.")
        return web.Response(body=orjson.dumps(self.model), content_type="application/json")

    async def agent(self, request: web.Request) -> web.Response:
        self.asked.append(request.path_qs)
        return web.Response(text=f"Agent {request.match_info['index']}\n<b>said</b> something")

    async def changes(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        queue: asyncio.Queue[None] = asyncio.Queue()
        self._listeners.append(queue)
        try:
            while True:
                await response.write(b"data: 1\n\n")
                await queue.get()
        except ConnectionResetError:
            return response
        finally:
            self._listeners.remove(queue)


@asynccontextmanager
async def serving(served: Served) -> AsyncIterator[str]:
    """Its address. A second time it is the same one."""
    app = web.Application()
    app.add_routes(
        [
            web.get("/", served.page),
            web.get("/run.json", served.run),
            web.get("/changes", served.changes),
            web.get(r"/agent/{index}", served.agent),
            web.get(r"/{name:\w+\.\w+}", served.page),
        ]
    )
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", served.port).start()
        served.port = runner.addresses[0][1]
        yield f"http://127.0.0.1:{served.port}/"
    finally:
        await runner.cleanup()
