"""Routes of the simulated server, with the overhead of its front end and injected faults: generation, models,
tokenizer, OpenAPI, and /metrics with vLLM's names.
"""

import asyncio
import functools
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import orjson

from .batches.anthropic_messages import anthropic_error, read_message
from .batches.batch_routes import BatchRoutes
from .batches.line_runner import Billing
from .faults import Fault, Faults, Kind
from .generation import Generation
from .http import ClientConnection
from .http_parser import HttpRequest
from .kv_engine.engine_driver import EngineDriver
from .kv_engine.sim_engine import SimEngine
from .openai_responses import DONE, error_body, flex_unavailable
from .prompts import UNREADABLE, chat_prompt
from .request_errors import RequestError, invalid, unknown_model
from .request_reader import Requests
from .response_writer import SimResponseWriter
from .sim_config import KV_BYTES_PER_TOKEN, RateLimits, Script, SimConfig
from .tokens import decode, encode, from_ids, to_ids


class InfoRoutes:
    """Handlers that map request bodies to response bodies. Handlers with a request body raise RequestError."""

    def __init__(self, config: SimConfig) -> None:
        self._model = config.model
        self._context = config.context_tokens
        self._created = int(time.time())

    def models(self) -> bytes:
        model = {"id": self._model, "object": "model", "created": self._created, "owned_by": "batch-agent-sim"}
        return orjson.dumps({"object": "list", "data": [{**model, "max_model_len": self._context}]})

    def server_info(self) -> bytes:
        """Server info like SGLang's, whose router reads the model name here and not in /v1/models."""
        return orjson.dumps({"model_path": self._model, "served_model_name": self._model})

    def tokenize(self, body: dict[str, Any]) -> bytes:
        self._check(body)
        ids = to_ids(chat_prompt(body) if "messages" in body else _text(body))
        return orjson.dumps({"count": len(ids), "max_model_len": self._context, "tokens": ids, "token_strs": None})

    def detokenize(self, body: dict[str, Any]) -> bytes:
        self._check(body)
        try:
            return orjson.dumps({"prompt": decode(from_ids(body["tokens"]))})
        except UNREADABLE as error:
            raise invalid(f"tokens must be a list of token ids: {error!r}", "body.tokens") from error

    def _check(self, body: dict[str, Any]) -> None:
        model = body.get("model")
        if model is not None and model != self._model:
            raise unknown_model(model)


def openapi(posts: Iterable[bytes], gets: Iterable[bytes]) -> bytes:
    """The list of routes, without their parameters."""
    methods = [(path, "post") for path in posts] + [(path, "get") for path in gets]
    paths: dict[str, Any] = {path.decode(): {method: {"responses": {}}} for path, method in methods}
    return orjson.dumps({"openapi": "3.1.0", "info": {"title": "batch-agent-sim", "version": "0"}, "paths": paths})


def _text(body: dict[str, Any]) -> bytes:
    try:
        return encode(body["prompt"])
    except UNREADABLE as error:
        raise invalid(f"prompt must be a string: {error!r}", "body.prompt") from error


def metrics_text(engine: SimEngine, http_requests: int, refused: int, billing: Billing) -> bytes:
    """`http_requests`: number of HTTP requests for generation; a list of prompts is one of them, but many for the
    engine. `refused`: number of requests beyond a limit per minute."""
    config, scheduler, counters = engine.config, engine.scheduler, engine.counters
    labels = f'{{engine="0",model_name="{config.model}"}}'
    caches = "" if config.prefix_caching else 'enable_prefix_caching="False",'
    tier = f'kv_offloading_size="{config.host_gib}",' if config.host_blocks else ""
    cache = f'{{block_size="{config.block_size}",{caches}engine="0",{tier}num_gpu_blocks="{config.num_blocks}"}}'
    lines = [
        *_metric("vllm:num_requests_running", "gauge", labels, len(scheduler.running)),
        *_metric("vllm:num_requests_waiting", "gauge", labels, scheduler.waiting),
        *_metric("vllm:kv_cache_usage_perc", "gauge", labels, engine.pool.used / engine.pool.num_blocks),
        *_metric("vllm:prefix_cache_queries_total", "counter", labels, scheduler.query_tokens),
        *_metric("vllm:prefix_cache_hits_total", "counter", labels, scheduler.hit_tokens),
        *_metric("vllm:num_preemptions_total", "counter", labels, scheduler.preemptions),
        *_metric("vllm:prompt_tokens_total", "counter", labels, counters.prompt_tokens),
        *_metric("vllm:generation_tokens_total", "counter", labels, counters.generation_tokens),
        *_metric("vllm:request_success_total", "counter", labels, counters.finished),
        *_metric("vllm:cache_config_info", "gauge", cache, 1),
        *_metric("sim:requests_aborted_total", "counter", labels, counters.aborted),
        *_metric("sim:http_requests_total", "counter", labels, http_requests),
        *_metric("sim:rate_limited_total", "counter", labels, refused),
        *_host_metrics(engine, labels),
        *_billing_metrics(billing),
        *_metric("process_cpu_seconds_total", "counter", "", time.process_time()),
    ]
    return ("\n".join(lines) + "\n").encode()


def _host_metrics(engine: SimEngine, labels: str) -> list[str]:
    if engine.host is None:
        return []
    config, host = engine.config, engine.host
    block_bytes = config.block_size * KV_BYTES_PER_TOKEN
    return [
        *_metric("vllm:external_prefix_cache_hits_total", "counter", labels, host.loaded_blocks * config.block_size),
        *_metric("vllm:kv_offload_load_bytes_total", "counter", labels, host.loaded_blocks * block_bytes),
        *_metric("vllm:kv_offload_store_bytes_total", "counter", labels, host.stored_blocks * block_bytes),
    ]


def _billing_metrics(billing: Billing) -> list[str]:
    lines: list[str] = []
    for name, labels, value in billing.samples():
        title, sample = _metric(name, "counter", labels, value)
        lines += [sample] if title in lines else [title, sample]
    return lines


def _metric(name: str, kind: str, labels: str, value: float) -> tuple[str, str]:
    family = name.removesuffix("_total") if kind == "counter" else name
    return f"# TYPE {family} {kind}", f"{name}{labels} {float(value)!r}"


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """The part of an event loop that the front end needs."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], None], /) -> Timer: ...


class FrontEnd:
    """Delays requests by their overhead, one at a time, like vLLM's single API process, without using CPU."""

    def __init__(self, config: SimConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._has_overhead = config.front_end_seconds(1) > 0
        self._free_at = 0.0

    def schedule(self, prompts: int, connection: ClientConnection, callback: Callable[[], None]) -> None:
        """Calls `callback` after this request's overhead: at once if there is none, never if the client disconnects."""
        if not self._has_overhead:
            callback()
            return
        self._free_at = max(self._free_at, self._clock.time()) + self._config.front_end_seconds(prompts)
        connection.on_disconnect = self._clock.call_at(self._free_at, callback).cancel


Post = Callable[[dict[str, Any]], Generation | bytes]
_MESSAGES = b"/v1/messages"


class SimRoutes:
    """Request handlers. Everything runs on one event loop, and nothing awaits."""

    def __init__(self, config: SimConfig, script: Script, loop: asyncio.AbstractEventLoop) -> None:
        self.connections: set[ClientConnection] = set()
        self._loop = loop
        self._driver = EngineDriver(config, loop)
        self._front_end = FrontEnd(config, loop)
        self._faults = Faults(config.faults)
        self._limiter = RateLimiter(config.rate_limits, loop.time())
        requests, info = Requests(config, script), InfoRoutes(config)
        self._batches = BatchRoutes(config.batches, requests, self._faults)
        self._posts: dict[bytes, Post] = {
            b"/v1/chat/completions": requests.chat,
            b"/v1/completions": requests.completion,
            _MESSAGES: functools.partial(read_message, requests),
            b"/tokenize": info.tokenize,
            b"/detokenize": info.detokenize,
        }
        if config.batch_chat:
            self._posts[b"/v1/chat/completions/batch"] = requests.batch_chat
        self._gets: dict[bytes, Callable[[], tuple[bytes, bytes]]] = {
            b"/health": lambda: (b"", b"text/plain"),
            b"/version": lambda: (b'{"version":"batch-agent-sim"}', b"application/json"),
            b"/v1/models": lambda: (info.models(), b"application/json"),
            b"/server_info": lambda: (info.server_info(), b"application/json"),
            b"/metrics": self._metrics,
            b"/openapi.json": lambda: (openapi(self._posts, self._gets), b"application/json"),
        }

    def handle(self, request: HttpRequest, connection: ClientConnection) -> None:
        post = self._posts.get(request.path)
        if post and request.method == b"POST":
            self._post(post, request, connection)
            return
        get = self._gets.get(request.path)
        if get and request.method == b"GET":
            connection.reply(200, *get())
        elif self._batches.handle(request, connection):
            return
        elif post or get:
            connection.reply(405, b'{"detail":"Method Not Allowed"}')
        else:
            connection.reply(404, b'{"detail":"Not Found"}')

    def _post(self, route: Post, request: HttpRequest, connection: ClientConnection) -> None:
        body: dict[str, Any] = {}
        try:
            body = _object(request.body)
            answer = route(body)
        except RequestError as error:
            encode = anthropic_error if request.path == _MESSAGES else error_body
            content = encode(error.status, str(error), error.kind, error.param)
            in_stream = error.late and bool(body.get("stream"))
            reject = functools.partial(_reject, connection, error.status, content, in_stream=in_stream)
            self._front_end.schedule(0, connection, reject)
            return
        if isinstance(answer, Generation):
            generate = functools.partial(self._generate, answer, connection)
            self._front_end.schedule(len(answer.sequences), connection, generate)
        else:
            self._front_end.schedule(1, connection, functools.partial(connection.reply, 200, answer))

    def _metrics(self) -> tuple[bytes, bytes]:
        self._driver.run()
        counts = self._faults.requests, self._limiter.refused
        text = metrics_text(self._driver.engine, *counts, self._batches.billing)
        return text, b"text/plain; version=0.0.4; charset=utf-8"

    def _generate(self, generation: Generation, connection: ClientConnection) -> None:
        if self._limiter.is_limited:
            tokens = sum(each.prompt_tokens + each.output_tokens for each in generation.sequences)
            retry_after = self._limiter.retry_after(tokens, self._loop.time())
            lines = "".join(f"{name}: {value}\r\n" for name, value in self._limiter.headers().items())
            connection.header_lines = lines.encode()
            if retry_after is not None:
                _reply_status(generation, connection, Fault(Kind.STATUS, status=429, retry_after_s=retry_after))
                return
        fault, fault_index = self._fault(generation)
        if fault and fault.kind is Kind.STATUS:
            _reply_status(generation, connection, fault)
            return
        is_flex = generation.encoder.service_tier == "flex"
        if is_flex and (self._batches.armed.take_for_flex() or self._faults.refuses_flex()):
            connection.reply(429, flex_unavailable())
            return
        self._bill("flex" if is_flex else "standard", generation)
        writer = SimResponseWriter(generation, connection, fault, fault_index, self._driver.abort)
        if fault and fault.kind is Kind.STALL:
            writer.open()
            timer = self._loop.call_later(fault.stall_s, self._driver.submit, generation, writer, connection)
            connection.on_disconnect = timer.cancel
        else:
            self._driver.submit(generation, writer, connection)

    def _bill(self, lane: str, generation: Generation) -> None:
        for sequence in generation.sequences:
            self._batches.billing.count(lane, sequence.prompt_tokens, sequence.output_tokens)

    def _fault(self, generation: Generation) -> tuple[Fault | None, int]:
        """The fault of a request, and the index of its prompt: that of the first prompt whose directive still applies,
        otherwise a random fault for the first prompt."""
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


def _reject(connection: ClientConnection, status: int, body: bytes, *, in_stream: bool) -> None:
    if in_stream:
        connection.open_stream(b"data: %b\n\n" % body)
        connection.end_stream(DONE)
    else:
        connection.reply(status, body)


def _reply_status(generation: Generation, connection: ClientConnection, fault: Fault) -> None:
    kinds = {400: "BadRequestError", 429: "RateLimitError", 500: "InternalServerError"}
    extra = b"" if fault.retry_after_s is None else b"retry-after: %b\r\n" % f"{fault.retry_after_s:g}".encode()
    message = f"simulated failure with status {fault.status}"
    body = generation.body_encoder.error(fault.status, message, kinds.get(fault.status, "APIError"))
    connection.reply(fault.status, body, extra=extra)


_MINUTE = 60.0


class RateLimiter:
    """Token buckets for requests and tokens. Time is an argument."""

    def __init__(self, limits: RateLimits, now: float) -> None:
        self._reports = limits.headers
        self._burst = limits.burst_s / _MINUTE
        """Capacity of a bucket as a share of its limit."""
        found = {"requests": limits.rpm, "tokens": limits.tpm}
        self._limits = {name: limit for name, limit in found.items() if limit is not None}
        self._used = dict.fromkeys(self._limits, 0.0)
        self._at = now
        self.refused = 0

    @property
    def is_limited(self) -> bool:
        return bool(self._limits)

    def retry_after(self, tokens: int, now: float) -> float | None:
        """Counts a request. Returns None if it is accepted, otherwise the seconds until it would be."""
        costs, wait = {"requests": 1, "tokens": tokens}, 0.0
        for name, limit in self._limits.items():
            self._used[name] = max(0.0, self._used[name] - (now - self._at) * limit / _MINUTE)
            excess = min(costs[name], self._burst * limit) + self._used[name] - self._burst * limit
            wait = max(wait, excess * _MINUTE / limit)
        self._at = now
        if wait > 0:
            self.refused += 1
            return wait
        for name in self._limits:
            self._used[name] += costs[name]
        return None

    def headers(self) -> dict[str, str]:
        """Headers of a response, with OpenAI's names."""
        found: dict[str, str] = {}
        for name, limit in self._limits.items() if self._reports else ():
            used = self._used[name]
            found[f"x-ratelimit-limit-{name}"] = str(limit)
            found[f"x-ratelimit-remaining-{name}"] = str(max(0, int(limit - used)))
            found[f"x-ratelimit-reset-{name}"] = f"{round(used * _MINUTE / limit * 1000)}ms"
        return found
