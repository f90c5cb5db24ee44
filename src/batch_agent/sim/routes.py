"""Routes of the simulated server, with the overhead of its front end and injected faults."""

import asyncio
import functools
from collections.abc import Callable
from typing import Any, Protocol

import orjson

from .faults import Fault, Faults, Kind
from .generation import Generation
from .http import ClientConnection
from .http_parser import HttpRequest
from .info_routes import InfoRoutes, metrics_text, openapi
from .kv_engine.engine_driver import EngineDriver
from .openai_responses import DONE, error_body
from .request_errors import RequestError
from .request_reader import Requests
from .response_writer import SimResponseWriter
from .sim_config import Script, SimConfig


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """The part of an event loop that the front end needs."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], None], /) -> Timer: ...


class FrontEnd:
    """Delays requests by their overhead, one after the other, as vLLM's single API process does, without using CPU."""

    def __init__(self, config: SimConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._has_overhead = config.front_end_seconds(1) > 0
        self._free_at = 0.0

    def schedule(self, prompts: int, connection: ClientConnection, callback: Callable[[], None]) -> None:
        """Call `callback` after this request's overhead: at once if there is none, never if the client disconnects."""
        if not self._has_overhead:
            callback()
            return
        self._free_at = max(self._free_at, self._clock.time()) + self._config.front_end_seconds(prompts)
        connection.on_disconnect = self._clock.call_at(self._free_at, callback).cancel


Post = Callable[[dict[str, Any]], Generation | bytes]


class SimRoutes:
    """Request handlers. Everything runs on one event loop, and nothing awaits."""

    def __init__(self, config: SimConfig, script: Script, loop: asyncio.AbstractEventLoop) -> None:
        self.connections: set[ClientConnection] = set()
        self._loop = loop
        self._driver = EngineDriver(config, loop)
        self._front_end = FrontEnd(config, loop)
        self._faults = Faults(config.faults)
        requests, info = Requests(config, script), InfoRoutes(config)
        self._posts: dict[bytes, Post] = {
            b"/v1/chat/completions": requests.chat,
            b"/v1/completions": requests.completion,
            b"/tokenize": info.tokenize,
            b"/detokenize": info.detokenize,
        }
        if config.batch_chat:
            self._posts[b"/v1/chat/completions/batch"] = requests.batch_chat
        self._gets: dict[bytes, Callable[[], tuple[bytes, bytes]]] = {
            b"/health": lambda: (b"", b"text/plain"),
            b"/version": lambda: (b'{"version":"batch-agent-sim"}', b"application/json"),
            b"/v1/models": lambda: (info.models(), b"application/json"),
            b"/metrics": self._metrics,
            b"/openapi.json": lambda: (openapi(self._posts, self._gets), b"application/json"),
        }

    def handle(self, request: HttpRequest, connection: ClientConnection) -> None:
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

    def _post(self, route: Post, raw: bytes, connection: ClientConnection) -> None:
        body: dict[str, Any] = {}
        try:
            body = _object(raw)
            answer = route(body)
        except RequestError as error:
            reject = functools.partial(_reject, connection, error, in_stream=error.late and bool(body.get("stream")))
            self._front_end.schedule(0, connection, reject)
            return
        if isinstance(answer, Generation):
            generate = functools.partial(self._generate, answer, connection)
            self._front_end.schedule(len(answer.sequences), connection, generate)
        else:
            self._front_end.schedule(1, connection, functools.partial(connection.reply, 200, answer))

    def _metrics(self) -> tuple[bytes, bytes]:
        self._driver.run()
        return metrics_text(self._driver.engine, self._faults.requests), b"text/plain; version=0.0.4; charset=utf-8"

    def _generate(self, generation: Generation, connection: ClientConnection) -> None:
        fault, fault_index = self._fault(generation)
        if fault and fault.kind is Kind.STATUS:
            _reply_status(connection, fault)
            return
        writer = SimResponseWriter(generation, connection, fault, fault_index, self._driver.abort)
        if fault and fault.kind is Kind.STALL:
            writer.open()
            timer = self._loop.call_later(fault.stall_s, self._driver.submit, generation, writer, connection)
            connection.on_disconnect = timer.cancel
        else:
            self._driver.submit(generation, writer, connection)

    def _fault(self, generation: Generation) -> tuple[Fault | None, int]:
        """The fault of a request, and the index of its prompt: the first prompt whose directive still applies,
        otherwise a random fault and the first prompt."""
        by_chance = self._faults.of_chance()
        if not generation.prompt_faults:
            return by_chance, 0
        ordered = [(self._faults.of_order(each.order, each.prompt), each.index) for each in generation.prompt_faults]
        return next((each for each in ordered if each[0]), (None, 0))


def _object(raw: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object")
    return body


def _reject(connection: ClientConnection, error: RequestError, *, in_stream: bool) -> None:
    body = error_body(error.status, str(error), error.kind, error.param)
    if in_stream:
        connection.open_stream(b"data: %b\n\n" % body)
        connection.end_stream(DONE)
    else:
        connection.reply(error.status, body)


def _reply_status(connection: ClientConnection, fault: Fault) -> None:
    kinds = {400: "BadRequestError", 429: "RateLimitError", 500: "InternalServerError"}
    extra = b"" if fault.retry_after_s is None else b"retry-after: %b\r\n" % f"{fault.retry_after_s:g}".encode()
    message = f"simulated failure with status {fault.status}"
    connection.reply(fault.status, error_body(fault.status, message, kinds.get(fault.status, "APIError")), extra=extra)
