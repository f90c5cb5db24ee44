"""The simulated engine as a server: routes, and the pump that moves the engine along with the clock."""

import asyncio
import functools
import gc
import signal
import sys
from collections.abc import Callable
from typing import Any

import orjson

from .config import SimConfig
from .delivery import Delivery
from .engine import Engine
from .faults import Fault, Faults, Kind
from .http import Connection
from .metrics import metrics_text
from .openai import error_body
from .reader import HttpRequest
from .requests import Generation, RequestError, Requests
from .script import Script
from .sequence import Sequence

MIN_TIMER_S = 0.001
"""uvloop counts in milliseconds: a shorter timer would spin. The engine's own clock stays exact."""


class Server:
    """Answers requests. Everything happens on one event loop; nothing here awaits."""

    def __init__(self, config: SimConfig, script: Script, loop: asyncio.AbstractEventLoop) -> None:
        self.connections: set[Connection] = set()
        self._config = config
        self._loop = loop
        self._engine = Engine(config)
        self._faults = Faults(config.faults)
        self._requests = Requests(config, script)
        self._deliveries: dict[Sequence, tuple[Delivery, int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._posts: dict[bytes, Callable[[dict[str, Any], Connection], None]] = {
            b"/v1/chat/completions": self._chat,
            b"/v1/completions": self._completion,
            b"/tokenize": self._tokenize,
        }
        self._gets: dict[bytes, Callable[[], tuple[bytes, bytes]]] = {
            b"/health": lambda: (b"", b"text/plain"),
            b"/version": lambda: (b'{"version":"batch-agent-sim"}', b"application/json"),
            b"/v1/models": lambda: (self._requests.models(), b"application/json"),
            b"/metrics": self._metrics,
        }

    def handle(self, request: HttpRequest, connection: Connection) -> None:
        post = self._posts.get(request.path)
        if post and request.method == b"POST":
            self._post(post, request.body, connection)
            return
        get = self._gets.get(request.path)
        if get and request.method == b"GET":
            connection.reply(200, *get())
        elif post or get:
            connection.reply(405, b'{"detail":"Method Not Allowed"}')
        else:
            connection.reply(404, b'{"detail":"Not Found"}')

    def _post(self, route: Callable[[dict[str, Any], Connection], None], raw: bytes, connection: Connection) -> None:
        try:
            try:
                body = orjson.loads(raw)
            except orjson.JSONDecodeError as error:
                raise RequestError(f"the body is not JSON: {error}") from error
            if not isinstance(body, dict):
                raise RequestError("the body must be a JSON object")
            route(body, connection)
        except RequestError as error:
            connection.reply(error.status, error_body(error.status, str(error), error.kind, error.param))

    def _chat(self, body: dict[str, Any], connection: Connection) -> None:
        self._generate(self._requests.chat(body), connection)

    def _completion(self, body: dict[str, Any], connection: Connection) -> None:
        self._generate(self._requests.completion(body), connection)

    def _tokenize(self, body: dict[str, Any], connection: Connection) -> None:
        connection.reply(200, self._requests.tokenize(body))

    def _metrics(self) -> tuple[bytes, bytes]:
        self._pump()
        return metrics_text(self._engine), b"text/plain; version=0.0.4; charset=utf-8"

    def _generate(self, generation: Generation, connection: Connection) -> None:
        fault = self._faults.of_chance()
        if generation.order:
            fault = self._faults.of_order(generation.order, generation.prompt)
        if fault and fault.kind is Kind.STATUS:
            _reply_status(connection, fault)
            return
        delivery = Delivery(generation, connection, fault, self._abort, self._config.chunk_tokens)
        if fault and fault.kind is Kind.STALL:
            delivery.open()
            timer = self._loop.call_later(fault.stall_s, self._submit, generation, delivery, connection)
            connection.on_gone = timer.cancel
        else:
            self._submit(generation, delivery, connection)

    def _submit(self, generation: Generation, delivery: Delivery, connection: Connection) -> None:
        if self._config.zero_latency:
            for index, sequence in enumerate(generation.sequences):
                self._engine.run_alone(sequence)
                delivery.progress(index, 0, sequence.generated, finished=True)
            return
        connection.on_gone = functools.partial(self._leave, generation)
        self._pump()
        now = self._loop.time()
        for index, sequence in enumerate(generation.sequences):
            self._deliveries[sequence] = (delivery, index)
            self._engine.add(sequence, now)
        self._pump()

    def _leave(self, generation: Generation) -> None:
        """The client is gone."""
        self._pump()
        self._abort(generation)
        self._pump()

    def _abort(self, generation: Generation) -> None:
        """Nobody wants the rest: free what the sequences hold. The engine must be up to date."""
        now = self._loop.time()
        for sequence in generation.sequences:
            if self._deliveries.pop(sequence, None):
                self._engine.abort(sequence, now)

    def _pump(self) -> None:
        """Bring the engine up to now, deliver what came out, and come back when there is more."""
        for news in self._engine.advance(self._loop.time()):
            sequence = news.sequence
            found = self._deliveries.pop(sequence, None) if news.finished else self._deliveries.get(sequence)
            if found:
                delivery, index = found
                delivery.progress(index, news.start, news.stop, finished=news.finished)
        wake_at = self._engine.wake_at
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if wake_at is not None:
            self._timer = self._loop.call_later(max(wake_at - self._loop.time(), MIN_TIMER_S), self._pump)


def serve(
    config: SimConfig, script: Script, host: str = "127.0.0.1", port: int = 8000, *, until_stdin_ends: bool = False
) -> None:
    """Print `{"port": n}`, then serve until SIGTERM, SIGINT or, where asked for, the end of standard input."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(_serve(config, script, host, port, until_stdin_ends))
    else:
        uvloop.run(_serve(config, script, host, port, until_stdin_ends))


async def _serve(config: SimConfig, script: Script, host: str, port: int, until_stdin_ends: bool) -> None:
    # Requests leave no cycles behind: looking for them at every 700th object would be a tenth of the work.
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    app = Server(config, script, loop)
    listener = await loop.create_server(lambda: Connection(app.handle, app.connections), host, port, backlog=4096)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    if until_stdin_ends:
        await loop.connect_read_pipe(lambda: _UntilEnd(stopped), sys.stdin)
    print(orjson.dumps({"port": listener.sockets[0].getsockname()[1]}).decode(), flush=True)
    await stopped.wait()
    listener.close()
    for connection in list(app.connections):
        connection.close()


class _UntilEnd(asyncio.Protocol):
    """Stops the server when the process that holds the other end of the pipe has died."""

    def __init__(self, stopped: asyncio.Event) -> None:
        self._stopped = stopped

    def connection_lost(self, exc: Exception | None) -> None:
        self._stopped.set()


def _reply_status(connection: Connection, fault: Fault) -> None:
    kind = {429: "RateLimitError", 500: "InternalServerError"}.get(fault.status, "APIError")
    extra = b"" if fault.retry_after_s is None else b"retry-after: %b\r\n" % f"{fault.retry_after_s:g}".encode()
    message = f"simulated failure with status {fault.status}"
    connection.reply(fault.status, error_body(fault.status, message, kind), extra=extra)
