"""Proxy that kills its client at a chosen exchange: before it is passed on, before the answer, or after it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from aiohttp import ClientSession, web

Phase = Literal["before", "between", "after"]
_WATCHED = ("/v1/files", "/v1/batches", "/v1/messages/batches")
_DROPPED = ("Transfer-Encoding", "Content-Length", "Content-Encoding", "Date", "Server")


@dataclass
class KillPoint:
    exchange: int
    """Index among the exchanges about files and batches."""
    phase: Phase
    delay: float = 0.0
    """Seconds after the answer was passed on."""


class KillingProxy:
    def __init__(self, target: str) -> None:
        self._target = target
        self.url = ""
        self.point: KillPoint | None = None
        self.kill: Callable[[], None] = lambda: None
        self.exchanges: list[str] = []
        self.has_killed = False

    async def handle(self, request: web.Request) -> web.StreamResponse:
        is_watched = request.path.startswith(_WATCHED)
        point = self.point
        is_here = is_watched and point is not None and len(self.exchanges) == point.exchange
        if is_watched:
            self.exchanges.append(f"{request.method} {request.path}")
        if is_here and point is not None and point.phase == "before":
            self._kill()
        headers = {name: value for name, value in request.headers.items() if name != "Host"}
        async with (
            ClientSession(auto_decompress=False) as session,
            session.request(
                request.method, self._target + request.path_qs, headers=headers, data=await request.read()
            ) as answer,
        ):
            body = await answer.read()
            kept = {name: value for name, value in answer.headers.items() if name not in _DROPPED}
        if is_here and point is not None and point.phase == "between":
            self._kill()
        if is_here and point is not None and point.phase == "after":
            asyncio.get_running_loop().call_later(point.delay, self._kill)
        return web.Response(status=answer.status, headers=kept, body=body)

    def _kill(self) -> None:
        self.has_killed = True
        self.kill()


@asynccontextmanager
async def killing_proxy(target: str) -> AsyncIterator[KillingProxy]:
    proxy = KillingProxy(target)
    app = web.Application(client_max_size=2**30)
    app.router.add_route("*", "/{path:.*}", proxy.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield proxy
    finally:
        await runner.cleanup()
