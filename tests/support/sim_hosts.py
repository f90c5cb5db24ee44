"""Simulated engines in this process, which can be inspected, made to misbehave, killed and restarted."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson

from batch_agent import VLLMPool
from batch_agent.sim import Script, SimConfig
from batch_agent.sim.http import ClientConnection
from batch_agent.sim.http_parser import HttpRequest
from batch_agent.sim.routes import SimRoutes

COMPLETIONS, CHAT, BATCH = "/v1/completions", "/v1/chat/completions", "/v1/chat/completions/batch"
Odd = Callable[[str, Any, ClientConnection], bool]
"""Answers instead of the engine, or lets it through with False. Sees the path and what was posted."""

QUICK = SimConfig(zero_latency=True)
STEPS = SimConfig(step_base_ms=2, step_us_per_seq=0, prefill_us_per_token=0, step_ns_per_kv_token=0)
"""Steps of 2 ms, however many prompts there are."""


def poison(fault: str, text: str = "", **more: Any) -> str:
    return f"[[sim: {orjson.dumps({'fault': fault, **more}).decode()}]] {text}"


@dataclass
class Host:
    """One endpoint."""

    config: SimConfig = QUICK
    script: Script = field(default_factory=lambda: Script(answer_tokens=8))
    without: Sequence[str] = ()
    """Paths that it does not have."""
    odd: Odd | None = None
    port: int = 0
    posts: list[tuple[str, Any]] = field(default_factory=list)
    """Paths and bodies, in the order in which they came."""
    connections: set[ClientConnection] = field(default_factory=set)
    _listener: asyncio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        app = SimRoutes(self.config, self.script, loop)
        self.connections = app.connections

        def handle(request: HttpRequest, connection: ClientConnection) -> None:
            path, body = request.path.decode(), orjson.loads(request.body) if request.body else None
            if body is not None:
                self.posts.append((path, body))
            if path in self.without:
                connection.reply(404, b'{"detail":"Not Found"}')
            elif self.odd is None or not self.odd(path, body, connection):
                app.handle(request, connection)

        # Serves once it can be killed: a caller that is cancelled while it waits leaves no listener behind.
        self._listener = await loop.create_server(
            lambda: ClientConnection(handle, app.connections), "127.0.0.1", self.port, start_serving=False
        )
        self.port = self._listener.sockets[0].getsockname()[1]
        await self._listener.start_serving()

    def kill(self) -> None:
        """All connections are reset, and no further one is taken."""
        if self._listener is not None:
            self._listener.close()
        self._listener = None
        for connection in list(self.connections):
            connection._reset_now()
            connection._transport = None  # what the engine still says is not heard

    def lists(self, path: str = COMPLETIONS) -> list[list[str]]:
        """The prompts of each request for answers."""
        return [body["messages" if path == BATCH else "prompt"] for posted, body in self.posts if posted == path]

    def requests(self) -> int:
        return sum(path in (COMPLETIONS, CHAT, BATCH) for path, _ in self.posts)


@asynccontextmanager
async def up(*hosts: Host) -> AsyncIterator[tuple[Host, ...]]:
    try:
        for host in hosts:
            await host.start()
        yield hosts
    finally:
        for host in hosts:
            host.kill()
        await asyncio.sleep(0)  # the transports notice


@asynccontextmanager
async def pool_of(*hosts: Host, **options: Any) -> AsyncIterator[VLLMPool]:
    """Starts the hosts that are not up."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(up(*(host for host in hosts if not host.port)))
        yield await stack.enter_async_context(VLLMPool([host.address for host in hosts], **options))


def refuse(connection: ClientConnection, status: int, message: str = "no", extra: bytes = b"") -> bool:
    body = {"error": {"message": message, "type": "BadRequestError", "code": status}}
    connection.reply(status, orjson.dumps(body), extra=extra)
    return True


def event(data: Any) -> bytes:
    return b"data: %b\n\n" % (data if isinstance(data, bytes) else orjson.dumps(data))


def choice(index: int, text: str, finish: str | None = None) -> bytes:
    return event({"choices": [{"index": index, "text": text, "finish_reason": finish}]})


async def soon(is_so: Callable[[], bool]) -> None:
    """Returns when it is; raises TimeoutError where it never will be."""
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.01)
