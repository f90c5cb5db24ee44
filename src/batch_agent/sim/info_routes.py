"""Routes besides generation: models, tokenizer, OpenAPI and /metrics with vLLM's names."""

import time
from collections.abc import Iterable
from typing import Any

import orjson

from .kv_engine.sim_engine import SimEngine
from .prompts import UNREADABLE, chat_prompt
from .request_errors import invalid, unknown_model
from .sim_config import SimConfig
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


def metrics_text(engine: SimEngine, http_requests: int) -> bytes:
    """`http_requests`: HTTP requests for generation; a list of prompts is one of them, and many for the engine."""
    config, scheduler, counters = engine.config, engine.scheduler, engine.counters
    labels = f'{{engine="0",model_name="{config.model}"}}'
    caches = "" if config.prefix_caching else 'enable_prefix_caching="False",'
    cache = f'{{block_size="{config.block_size}",{caches}engine="0",num_gpu_blocks="{config.num_blocks}"}}'
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
        *_metric("process_cpu_seconds_total", "counter", "", time.process_time()),
    ]
    return ("\n".join(lines) + "\n").encode()


def _metric(name: str, kind: str, labels: str, value: float) -> tuple[str, str]:
    family = name.removesuffix("_total") if kind == "counter" else name
    return f"# TYPE {family} {kind}", f"{name}{labels} {float(value)!r}"
