"""Probe of a server: its models, settings and abilities. None means unknown, not absent."""

import asyncio
import re
from base64 import b64decode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from yarl import URL

from ..core.errors import BackendError, ErrorKind, SpecError
from ..core.fast_dataclass import dataclass
from ..core.images import ImageData, ImageRef, PlacedImage
from ..core.messages import Prompt, ToolSpec, User
from ..core.protocols.backend import Backend
from ..core.requests import Finished, Request, Sampling, Usage
from ..lazy_imports import lazy_modules
from .dialects.openai.context_hints import COMPLETIONS_PATH, PARAMETERS, PLUGIN, capability_request
from .flavors import Flavor
from .http.client import ServerClient, display_url
from .http.json_body import BadJson, loads
from .startup_wait import Notify, with_retries

with lazy_modules(globals()):
    from ..schedule import kv_tiers

_MODELS_TIMEOUT = 60.0
_PAGE_TIMEOUT = 5.0
_TRIAL_TIMEOUT = 120.0
_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_PLUGIN_INFO = re.compile(r'^batch_agent:plugin_info\{[^}]*version="([^"]*)"', re.MULTILINE)
_PLUGIN_TIMEOUT = 10.0
_VLLM_TIERS = {
    "# TYPE vllm:lmcache_mp_": "LMCache",
    "# TYPE lmcache:": "LMCache",
    "# TYPE vllm:kv_offload_": "host memory",
    "# TYPE vllm:simple_kv_offload_": "host memory",
}
"""Metrics of the connectors of slower tiers; LMCache's server in a process of its own is the first."""
_SGLANG_TIERS = {"hicache_storage_backend": "HiCache storage", "enable_lmcache": "LMCache", "enable_flexkv": "FlexKV"}
_OWN_TIER = "host memory of "
_UNSTABLE_TIER = "0.26."
"""vLLM's own host tier: the engine dies when a request is aborted before its prompt is computed (vllm#49118)."""
_KV_ROUTER = "# TYPE dynamo_frontend_router_queue_pending_requests "
_TOOL = ToolSpec("probe", "", {"type": "object", "properties": {}})
_IMAGE_SIDE = 64
_IMAGE = b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAEAAAABACAAAAACPAi4CAAAAKUlEQVR42u3MQREAAAwCIKMb3RD77SAA6VEEAoFAIBAIBAKBQCAQ"
    "fA8G320AeXC6efoAAAAASUVORK5CYII="
)
"""A gray PNG. Some models take no smaller ones."""
_TRIAL_USAGE = Usage(32, 0, 1)


@dataclass(frozen=True, slots=True)
class ServedModel:
    name: str
    owner: str = ""
    context_tokens: int | None = None
    max_output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class KvPlugin:
    """The plugin batch-agent-vllm in a server. None: unknown, because the server was too busy to say."""

    version: str
    pins: bool | None = None
    """It keeps the contexts of waiting agents on the device."""
    policy: str | None = None
    """Eviction policy of the host tier that follows hints; empty: none."""
    host_tokens: int | None = None
    is_exclusive: bool = False
    """The host tier adds to the device instead of holding copies."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server reports about itself, besides its models."""

    version: str | None = None
    prefix_cache: bool | None = None
    kv_tokens: int | None = None
    """Capacity of the KV cache in GPU memory, of all engines together."""
    kv_retained_tokens: int | None = None
    """The same, or the capacity of a slower tier if that is larger: the tier holds copies, so the sizes are not added
    (except those of an exclusive tier). None for a tier whose size is unknown."""
    metrics: bool | None = None
    sessions: bool | None = None
    """Whether it keeps an agent's cache until the agent's session is closed."""
    priority: bool | None = None
    """Whether urgent requests are served first."""
    low_priority_first: bool = False
    """Whether a lower priority is the more urgent one, where that is an option of the server."""
    priority_eviction: bool | None = None
    """Whether the cache keeps what has the highest priority."""
    refuses_priority: bool = False
    """Whether it refuses requests with a priority, since it does not serve by priority."""
    host_tier: str = ""
    """Name of a slower tier of its KV cache; empty: none is known."""
    kv_router: bool | None = None
    """Whether it sends requests to the worker that has most of their prompt."""
    tool_parser: bool | None = None
    """Without a tool parser SGLang accepts tools, and returns calls as text; llama.cpp accepts them too where the chat
    template of the model leaves them out of the prompt."""
    images: bool | None = None
    """Whether its model takes images."""
    plugin: KvPlugin | None = None
    slots: int | None = None
    """Requests that it computes at a time."""
    context_tokens: int | None = None
    """Context window of one request, where it differs from that of the model."""


async def list_models(server: ServerClient, *, may_be_missing: bool, notify: Notify | None = None) -> list[ServedModel]:
    """The models that a server lists. Raises BackendError if it cannot be reached."""
    url = server.url("/models")
    address = display_url(url)
    try:
        body = loads(await with_retries(lambda: server.get(url, _MODELS_TIMEOUT), address, _MODELS_TIMEOUT, notify))
    except BackendError as error:
        if may_be_missing and error.kind is ErrorKind.NOT_FOUND:  # some gateways do not list models
            return []
        if error.kind is ErrorKind.CONNECTION and server.root.scheme == "http":
            raise BackendError(error.kind, f"{error} If the server uses TLS, use https://.") from None
        raise
    except BadJson as error:
        raise BackendError(ErrorKind.NOT_FOUND, f"{address} did not return JSON. Is it an inference server?") from error
    entries = body.get("data") if isinstance(body, dict) else body  # Together lists them without an object around
    return [_served(entry) for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def select_model(served: list[ServedModel], model: str | None, url: URL) -> ServedModel:
    """The model to use. Raises SpecError, with close matches, if it is not served."""
    names = [entry.name for entry in served]
    if model is None:
        if len(served) == 1:
            return served[0]
        entries = f"it serves {', '.join(names[:8])}" if names else "it lists no models"
        raise SpecError(f"Pass model=...: {display_url(url)} does not serve exactly one model ({entries}).")
    if not served:
        return ServedModel(model)
    for entry in served:
        if entry.name == model:
            return entry
    from difflib import get_close_matches  # for errors only

    close = get_close_matches(model, names, n=3) or names[:8]
    raise SpecError(
        f"model={model!r} is not served at {display_url(url)}. Did you mean {' or '.join(map(repr, close))}?"
    )


async def probe_tools(
    backend: Backend,
    model: str,
    *,
    rejects_early: bool = False,
    on_usage: Callable[[Usage], None] | None = None,
    tools: tuple[ToolSpec, ...] = (_TOOL,),
    notify: Notify | None = None,
) -> BackendError | None:
    """Sends a request with a tool for one token. Returns the rejection of a server without a tool parser, or None.

    A server that rejects early has accepted the request with the head of its stream, so the token is not awaited.
    `on_usage` is called with the usage, which is estimated in that case."""
    request = Request(Prompt("", tools), (User("Hi"),), model, Sampling(max_tokens=1), stream=rejects_early)
    attempt = partial(_rejection, backend, request, on_usage)
    return await with_retries(attempt, f"{model} to accept a tool", _TRIAL_TIMEOUT, notify, has_answered=True)


async def probe_images(
    backend: Backend,
    model: str,
    *,
    on_usage: Callable[[Usage], None] | None = None,
    notify: Notify | None = None,
) -> BackendError | None:
    """Sends a request with a small image for one token. Returns the rejection of a model without vision, or None."""
    image = ImageRef("trial", "image/png", len(_IMAGE), _IMAGE_SIDE, _IMAGE_SIDE, data=ImageData(_IMAGE))
    message = User("Hi", images=(PlacedImage(0, image),))
    request = Request(Prompt(""), (message,), model, Sampling(max_tokens=1))
    attempt = partial(_rejection, backend, request, on_usage)
    return await with_retries(attempt, f"{model} to accept an image", _TRIAL_TIMEOUT, notify, has_answered=True)


async def _rejection(
    backend: Backend, request: Request, on_usage: Callable[[Usage], None] | None
) -> BackendError | None:
    """The server's rejection of a request, or None. Of a stream only the head is awaited."""
    try:
        async with probe_timeout(), backend.stream(request) as deltas:
            usage = _TRIAL_USAGE
            if not request.stream:
                async for delta in deltas:
                    usage = delta.usage if isinstance(delta, Finished) else usage
            if on_usage is not None:
                on_usage(usage)
    except BackendError as error:
        if error.kind is ErrorKind.BAD_REQUEST:
            return error
        raise
    return None


@asynccontextmanager
async def probe_timeout() -> AsyncIterator[None]:
    """Raises BackendError if a server accepts a request and does not respond in time."""
    try:
        async with asyncio.timeout(_TRIAL_TIMEOUT):
            yield
    except TimeoutError as error:
        message = f"The server accepted a request, but did not respond within {_TRIAL_TIMEOUT:.0f} s."
        raise BackendError(ErrorKind.TURN_TIMEOUT, message) from error


async def inspect_server(server: ServerClient, flavor: Flavor) -> ServerInfo:
    """What a server's pages outside of the inference API report. Never raises: a server may hide all of them."""
    match flavor.name:
        case "vllm":
            version, metrics = await _fetch_two(server, "/version", "/metrics")
            info = replace(_vllm_info(metrics), version=version.string("version"))
            return info if info.plugin is None else await _with_plugin(server, info, info.plugin)
        case "sim":
            return _vllm_info(await _fetch_page(server, "/metrics"))
        case "sglang":
            return await _sglang_info(server)
        case "llama.cpp":
            return _llamacpp_info((await _fetch_page(server, "/props")).parsed)
        case "dynamo":
            return _dynamo_info(await _fetch_page(server, "/metrics"))
        case _:
            return ServerInfo()


def _served(entry: dict[str, Any]) -> ServedModel:
    meta = entry.get("meta")
    context = (
        entry.get("max_model_len")
        or entry.get("context_window")
        or entry.get("context_length")
        or entry.get("max_input_tokens")
        or (meta.get("n_ctx") if isinstance(meta, dict) else None)
    )
    owner = entry.get("owned_by") or ("anthropic" if entry.get("type") == "model" else "")
    return ServedModel(str(entry.get("id")), str(owner), _count(context), _count(entry.get("max_tokens")))


def _vllm_info(metrics: "_AdminPage") -> ServerInfo:
    found = [dict(_LABEL.findall(labels)) for labels in _CACHE_CONFIG.findall(metrics.text)]
    labels = found[0] if found else {}
    tokens = _vllm_tokens({labels.get("engine", ""): labels for labels in found})
    # The size of vLLM's own tier in tokens becomes known with the first copies (`ServerLoad.kv_host_tokens`); until
    # then the device counts. That of another one is unknown and usually many times larger, so no limit is the better
    # estimate.
    host_tier = _vllm_tier(labels, metrics.text)
    has_unknown_size = bool(host_tier) and not host_tier.startswith(_OWN_TIER)
    return ServerInfo(
        prefix_cache=labels["enable_prefix_caching"] == "True" if "enable_prefix_caching" in labels else None,
        kv_tokens=tokens,
        kv_retained_tokens=None if has_unknown_size else tokens,
        metrics=metrics.exists,
        host_tier=host_tier,
        plugin=KvPlugin(plugin[1]) if (plugin := _PLUGIN_INFO.search(metrics.text)) else None,
    )


async def _with_plugin(server: ServerClient, info: ServerInfo, plugin: KvPlugin) -> ServerInfo:
    """Adds what the plugin says about itself. It is asked with a request for one token: only so is the scheduler
    reached, which knows the host tier."""
    url = server.url(COMPLETIONS_PATH)
    found = _AdminPage(True, (await server.post_or_none(url, capability_request(), _PLUGIN_TIMEOUT) or b"").decode())
    fields = (found.parsed.get(PARAMETERS) or {}).get(PLUGIN)
    if not isinstance(fields, dict):
        return info
    policy, host_tokens = fields.get("policy"), _count(fields.get("host_tokens"))
    plugin = KvPlugin(
        plugin.version,
        fields.get("pins") is True,
        policy if isinstance(policy, str) else "",
        host_tokens,
        fields.get("exclusive") is True,
    )
    if host_tokens is None or info.kv_tokens is None:
        return replace(info, plugin=plugin)
    tiers = kv_tiers.KvTiers(info.kv_tokens, host_tokens, plugin.is_exclusive)
    return replace(info, plugin=plugin, kv_retained_tokens=tiers.retained)


def _vllm_tier(labels: dict[str, str], metrics: str) -> str:
    if (size := labels.get("kv_offloading_size", "None")) != "None":
        return "LMCache" if labels.get("kv_offloading_backend") == "lmcache" else f"{_OWN_TIER}{size} GiB"
    return next((name for mark, name in _VLLM_TIERS.items() if mark in metrics), "")


def _vllm_tokens(engines: dict[str, dict[str, str]]) -> int | None:
    """`kv_cache_size_tokens` is per engine, and correct for hybrid models too; `num_gpu_blocks` is the total of all
    engines on each engine's line."""
    sizes = [labels.get("kv_cache_size_tokens", "") for labels in engines.values()]
    if sizes and all(size.isdecimal() for size in sizes):
        return sum(map(int, sizes)) or None
    for labels in engines.values():
        blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
        if blocks.isdecimal() and size.isdecimal():
            return int(blocks) * int(size) or None
    return None


def has_unstable_tier(info: ServerInfo, flavor: str) -> bool:
    """Whether the server has a host tier in a version whose engine died with it."""
    is_native = info.host_tier.startswith("host memory")
    return flavor == "vllm" and is_native and (info.version or "").startswith(_UNSTABLE_TIER)


def _llamacpp_info(props: dict[str, Any]) -> ServerInfo:
    """Its slots divide the context that it was started with."""
    modalities, settings = props.get("modalities"), props.get("default_generation_settings")
    template = props.get("chat_template_caps")
    return ServerInfo(
        tool_parser=_flag(template.get("supports_tools")) if isinstance(template, dict) else None,
        images=_flag(modalities.get("vision")) if isinstance(modalities, dict) else None,
        slots=_count(props.get("total_slots")),
        context_tokens=_count(settings.get("n_ctx")) if isinstance(settings, dict) else None,
    )


def _dynamo_info(metrics: "_AdminPage") -> ServerInfo:
    """Only the KV router has these metrics. Other options of the frontend are not reported."""
    return ServerInfo(metrics=metrics.exists, kv_router=_KV_ROUTER in metrics.text if metrics.exists else None)


async def _sglang_info(server: ServerClient) -> ServerInfo:
    info, metrics = await _fetch_two(server, "/server_info", "/metrics")
    model = await _fetch_page(server, "/model_info")  # without vision it would ignore images
    config = info.parsed
    engine_tokens, engines = _count(config.get("max_total_num_tokens")), _count(config.get("dp_size")) or 1
    retained = _sglang_retained_tokens(config, engine_tokens) if engine_tokens else None
    return ServerInfo(
        version=info.string("version"),
        prefix_cache=not config["disable_radix_cache"] if "disable_radix_cache" in config else None,
        kv_tokens=engine_tokens * engines if engine_tokens else None,
        kv_retained_tokens=retained * engines if retained else None,
        metrics=metrics.exists,
        sessions=_flag(config.get("enable_session_radix_cache")),
        priority=_flag(config.get("enable_priority_scheduling")),
        low_priority_first=config.get("schedule_low_priority_values_first") is True,
        priority_eviction=config["radix_eviction_policy"] == "priority" if "radix_eviction_policy" in config else None,
        refuses_priority=config.get("abort_on_priority_when_disabled") is True,
        host_tier=_sglang_tier(config),
        tool_parser=bool(config["tool_call_parser"]) if "tool_call_parser" in config else None,
        images=_flag(model.parsed.get("has_image_understanding")),
    )


def _sglang_retained_tokens(config: dict[str, Any], gpu_tokens: int) -> int | None:
    """One engine's capacity with HiCache, whose host memory is given in GB, or as a multiple of the GPU's tokens."""
    if any(config.get(name) for name in _SGLANG_TIERS):
        return None
    if not config.get("enable_hierarchical_cache") or config.get("hicache_host_memory_mode") == "buffer_only":
        return gpu_tokens
    try:
        if size := config.get("hicache_size"):
            memory = config["internal_states"][0]["memory_usage"]
            host = size * 1e9 * memory["token_capacity"] / (memory["kvcache"] * 2**30)
        else:
            host = config["hicache_ratio"] * gpu_tokens
        return max(gpu_tokens, int(host))
    except (LookupError, TypeError, ArithmeticError, ValueError):
        return None


def _sglang_tier(config: dict[str, Any]) -> str:
    if name := next((name for option, name in _SGLANG_TIERS.items() if config.get(option)), ""):
        return name
    return "HiCache" if config.get("enable_hierarchical_cache") else ""


async def _fetch_two(server: ServerClient, first_path: str, second_path: str) -> tuple["_AdminPage", "_AdminPage"]:
    async with asyncio.TaskGroup() as group:
        first, second = (
            group.create_task(_fetch_page(server, first_path)),
            group.create_task(_fetch_page(server, second_path)),
        )
    return first.result(), second.result()


def admin_url(root: URL, path: str) -> URL:
    """The URL of a page outside of the inference API, such as /metrics."""
    return root.with_path(root.path.rstrip("/").removesuffix("/v1") + path).with_query(root.query)


@dataclass(frozen=True, slots=True)
class _AdminPage:
    """A page outside of the inference API. `exists` is None if that is unknown."""

    exists: bool | None
    text: str = ""

    @property
    def parsed(self) -> dict[str, Any]:
        try:
            value = loads(self.text.encode())
        except BadJson:
            return {}
        return value if isinstance(value, dict) else {}

    def string(self, name: str) -> str | None:
        value = self.parsed.get(name)
        return value if isinstance(value, str) else None


async def _fetch_page(server: ServerClient, path: str) -> _AdminPage:
    try:
        return _AdminPage(
            True, (await server.get(admin_url(server.root, path), _PAGE_TIMEOUT)).decode(errors="replace")
        )
    except BackendError as error:
        return _AdminPage(False if error.status is not None else None)


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
