"""HTTP server of the live page: the page, its model, and a stream of changes.

It checks the Host header, against DNS rebinding.
"""

import asyncio
import gzip
import ipaddress
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from time import time_ns

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from ...core.errors import BatchAgentError, StoreError
from ..event_codec import to_json
from .html import INDEX, page_files
from .log_follower import LogFollower

_NUMBER = re.compile(r"\d{1,12}")


def is_loopback(host: str) -> bool:
    """Whether the host is reachable only from this machine."""
    address = _address(host)
    return address.is_loopback if address is not None else host == "localhost"


def is_known(header: str, host: str) -> bool:
    """Whether a request with this Host header is meant for a server at `host`. A foreign page can make its own domain
    name resolve to this server, but cannot use an IP address or a name of this machine."""
    name = _name(header).lower()
    if _address(name) is not None or name == "localhost" or name == host.lower():
        return True
    return not is_loopback(host) and name in _own_names()


@cache
def _own_names() -> frozenset[str]:
    return frozenset({socket.gethostname().lower(), socket.getfqdn().lower()})


def _name(header: str) -> str:
    """The host name without the port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


_POLL_SECONDS = 1.0
"""Minimum interval between two polls of the log, at least ten times the duration of a poll."""
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
"""Returns the trace of an agent, by stage and key. Raises BatchAgentError. May block."""


@asynccontextmanager
async def served(follower: LogFollower, trace: AgentTrace, host: str, port: int) -> AsyncIterator[int]:
    """Serves for the duration of the block, and yields the port. Raises OSError if it cannot listen."""
    live = LiveServer(follower)
    runner = web.AppRunner(_app(live, trace, host), access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        async with live.polling():
            yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


class LiveServer:
    """A run that all clients follow: the log is read and the model is built once for all of them."""

    def __init__(self, follower: LogFollower) -> None:
        self._follower = follower
        self._lock = asyncio.Lock()
        self._changed = asyncio.Condition()
        self._listeners = 0
        self._has_listeners = asyncio.Event()
        self._body: tuple[int, bytes, bytes] | None = None
        self.is_closed = False
        self.version = 0
        self.problem = ""
        """Error message, if the run cannot be read."""

    async def body(self) -> tuple[int, bytes, bytes]:
        """Version, JSON and compressed JSON of the model. Raises StoreError if the run cannot be read."""
        await self.poll()
        async with self._lock:
            if self.problem:
                raise StoreError(self.problem)
            if self._body is None or self._body[0] != self.version:
                self._body = await asyncio.to_thread(self._build, self.version)
            return self._body

    async def key(self, stage: str, index: int, sample: int) -> str | None:
        await self.poll()
        async with self._lock:
            return await asyncio.to_thread(self._follower.key, stage, index, sample)

    async def poll(self) -> None:
        """Reads new events from the log, and notifies listeners of changes."""
        async with self._lock:
            before, problem = self._follower.version, self.problem
            try:
                while not self.is_closed and await asyncio.to_thread(self._follower.poll):
                    pass  # read in batches, so that the thread can be stopped
                self.problem = ""
            except (BatchAgentError, OSError) as error:
                self.problem = str(error)
            if self._follower.version == before and self.problem == problem:
                return
            self.version += 1
        async with self._changed:
            self._changed.notify_all()

    async def wait_for_change(self, seen: int | None) -> int | None:
        """Waits for a version other than `seen`; None after the heartbeat interval."""
        try:
            async with asyncio.timeout(_HEARTBEAT), self._changed:
                await self._changed.wait_for(lambda: self.is_closed or self.version != seen)
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
    async def polling(self) -> AsyncIterator[None]:
        """Polls the log in the background while there are listeners."""
        task = asyncio.get_running_loop().create_task(self._poll_loop())
        try:
            yield
        finally:
            self.is_closed = True
            task.cancel()
            await asyncio.wait([task])
            async with self._changed:
                self._changed.notify_all()

    async def _poll_loop(self) -> None:
        now = asyncio.get_running_loop().time
        while True:  # until cancelled: the writing process cannot notify this one
            await self._has_listeners.wait()
            began = now()
            await self.poll()
            await asyncio.sleep(max(_POLL_SECONDS, 10 * (now() - began)))

    def _build(self, version: int) -> tuple[int, bytes, bytes]:
        raw = to_json(self._follower.model())
        return version, raw, gzip.compress(raw, 5, mtime=0)


def _app(live: LiveServer, trace: AgentTrace, host: str) -> web.Application:
    pages, started = page_files(), time_ns()

    async def page(request: web.Request) -> web.Response:
        name = request.match_info.get("name", INDEX)
        if name not in pages:
            raise web.HTTPNotFound(text="Not found.")
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
            while not live.is_closed:
                version = await live.wait_for_change(seen)
                try:
                    await response.write(b": nothing new\n\n" if version is None else b"data: %d\n\n" % version)
                except ConnectionResetError:
                    break  # the client has disconnected
                seen = seen if version is None else version
        return response

    async def agent(request: web.Request) -> web.Response:
        stage, index = request.query.get("stage", ""), int(request.match_info["index"])
        sample = request.query.get("sample", "0")
        key = await live.key(stage, index, int(sample) if _NUMBER.fullmatch(sample) else 0)
        if key is None:
            raise web.HTTPNotFound(text=f"There is no agent {index}.")
        try:
            return web.Response(text=await asyncio.to_thread(trace, stage, key))
        except BatchAgentError as error:
            raise web.HTTPNotFound(text=str(error)) from error

    app = web.Application(middlewares=[_check_host(host)])
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


def _check_host(host: str) -> Middleware:
    """Middleware that rejects foreign Host headers, translates errors, and adds security headers."""

    @web.middleware
    async def handle(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not is_known(request.host, host):
            return web.Response(status=403, text=f"This server does not serve the host {request.host!r}.")
        try:
            response = await handler(request)
        except StoreError as error:
            response = web.Response(status=503, text=str(error))
        if not response.prepared:
            response.headers.update(_HEADERS)
        return response

    return handle
