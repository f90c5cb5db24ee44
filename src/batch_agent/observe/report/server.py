"""The live view of a run: a page, what it shows, and word of every change."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import time_ns

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from ...core.errors import BatchAgentError, StoreError
from ..event_codec import to_json
from .host_check import is_known
from .html import INDEX, page_files
from .log_follower import LogFollower

_BETWEEN = 1.0
"""Seconds between two looks at the log, at least; ten times as long as one takes."""
_HEARTBEAT = 10.0
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

AgentTrace = Callable[[str, str], str]
"""What an agent did, by stage and key. Raises BatchAgentError. May block."""


@asynccontextmanager
async def served(following: LogFollower, story: AgentTrace, host: str, port: int) -> AsyncIterator[int]:
    """Serves for as long as the block runs; gives the port, which 0 leaves open. Raises OSError where it cannot
    listen."""
    live = LiveServer(following)
    runner = web.AppRunner(_app(live, story, host), access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        async with live.watching():
            yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


class LiveServer:
    """A run that is followed for many at once: one look at its log, and one making of its model, serves all."""

    def __init__(self, following: LogFollower) -> None:
        self._following = following
        self._look = asyncio.Lock()
        self._changed = asyncio.Condition()
        self._listeners = 0
        self._has_listeners = asyncio.Event()
        self._body: tuple[int, bytes, bytes] | None = None
        self.is_over = False
        self.version = 0
        self.problem = ""
        """Why the run cannot be read."""

    async def body(self) -> tuple[int, bytes, bytes]:
        """The version of the model, its JSON, and that compressed. Raises StoreError where it cannot be read."""
        await self.look()
        async with self._look:
            if self.problem:
                raise StoreError(self.problem)
            if self._body is None or self._body[0] != self.version:
                self._body = await asyncio.to_thread(self._made, self.version)
            return self._body

    async def key(self, stage: str, index: int) -> str | None:
        await self.look()
        async with self._look:
            return await asyncio.to_thread(self._following.key, stage, index)

    async def look(self) -> None:
        """Reads what is new in the log, and tells those who listen if there is something."""
        async with self._look:
            before, problem = self._following.version, self.problem
            try:
                while not self.is_over and await asyncio.to_thread(self._following.look):
                    pass  # in pieces, so that it can be ended
                self.problem = ""
            except (BatchAgentError, OSError) as error:
                self.problem = str(error)
            if self._following.version == before and self.problem == problem:
                return
            self.version += 1
        async with self._changed:
            self._changed.notify_all()

    async def newer(self, seen: int | None) -> int | None:
        """A version that is not `seen`, as soon as there is one; None after a while without."""
        try:
            async with asyncio.timeout(_HEARTBEAT), self._changed:
                await self._changed.wait_for(lambda: self.is_over or self.version != seen)
        except TimeoutError:
            return None
        return self.version

    @contextmanager
    def listening(self) -> Iterator[None]:
        self._listeners += 1
        self._has_listeners.set()
        try:
            yield
        finally:
            self._listeners -= 1
            if not self._listeners:
                self._has_listeners.clear()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Looks at the log again and again while somebody listens."""
        task = asyncio.get_running_loop().create_task(self._watch())
        try:
            yield
        finally:
            self.is_over = True
            task.cancel()
            await asyncio.wait([task])
            async with self._changed:
                self._changed.notify_all()

    async def _watch(self) -> None:
        now = asyncio.get_running_loop().time
        while True:  # until it is cancelled: another process cannot tell us when it writes
            await self._has_listeners.wait()
            began = now()
            await self.look()
            await asyncio.sleep(max(_BETWEEN, 10 * (now() - began)))

    def _made(self, version: int) -> tuple[int, bytes, bytes]:
        raw = to_json(self._following.model())
        return version, raw, gzip.compress(raw, 5, mtime=0)


def _app(live: LiveServer, story: AgentTrace, host: str) -> web.Application:
    pages, started = page_files(), time_ns()

    async def page(request: web.Request) -> web.Response:
        name = request.match_info.get("name", INDEX)
        if name not in pages:
            raise web.HTTPNotFound(text="There is no such page.")
        kind, text = pages[name]
        return web.Response(text=text, content_type=kind, charset="utf-8")

    async def run(request: web.Request) -> web.Response:
        version, raw, compressed = await live.body()
        tag = f"{started}-{version}"
        if any(each.value == tag for each in request.if_none_match or ()):
            return web.Response(status=304, headers={"ETag": f'"{tag}"'})
        headers = {"ETag": f'"{tag}"', "Vary": "Accept-Encoding"}
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            return web.Response(
                body=compressed, content_type="application/json", headers={**headers, "Content-Encoding": "gzip"}
            )
        return web.Response(body=raw, content_type="application/json", headers=headers)

    async def changes(request: web.Request) -> web.StreamResponse:
        kind = {"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers={**_HEADERS, **kind})
        await response.prepare(request)
        seen: int | None = None
        with live.listening():
            while not live.is_over:
                version = await live.newer(seen)
                try:
                    await response.write(b": nothing new\n\n" if version is None else b"data: %d\n\n" % version)
                except ConnectionResetError:
                    break  # who listened has left
                seen = seen if version is None else version
        return response

    async def agent(request: web.Request) -> web.Response:
        stage, index = request.query.get("stage", ""), int(request.match_info["index"])
        key = await live.key(stage, index)
        if key is None:
            raise web.HTTPNotFound(text=f"There is no agent {index} here.")
        try:
            return web.Response(text=await asyncio.to_thread(story, stage, key))
        except BatchAgentError as error:
            raise web.HTTPNotFound(text=str(error)) from error

    app = web.Application(middlewares=[_only_for(host)])
    app.add_routes(
        [
            web.get("/", page),
            web.get("/run.json", run),
            web.get("/changes", changes),
            web.get(r"/agent/{index:\d{1,12}}", agent),
            web.get(r"/{name:[a-z_]+\.[a-z]+}", page),
        ]
    )
    return app


def _only_for(host: str) -> Middleware:
    """Answers who asks for this host by a name that is its own, and says what went wrong."""

    @web.middleware
    async def answered(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not is_known(request.host, host):
            return web.Response(status=403, text=f"This server does not answer for {request.host!r}.")
        try:
            response = await handler(request)
        except StoreError as error:
            response = web.Response(status=503, text=str(error))
        if not response.prepared:
            response.headers.update(_HEADERS)
        return response

    return answered
