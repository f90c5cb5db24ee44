"""Asks a server what it is. What could not be seen is None, which is not the same as absent."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, TypeVar

from yarl import URL

from ..core.errors import BackendError, ErrorKind, SpecError
from ..core.fast_dataclass import dataclass
from ..core.messages import Prompt, ToolSpec, User
from ..core.protocols import Backend
from ..core.requests import Finished, Request, Sampling, Usage
from ..schedule.backoff import Backoff
from .flavors import Flavor
from .http.client import ServerClient, display_url
from .http.json_body import BadJson, loads

T = TypeVar("T")
_WITHIN = 60.0
_BESIDE_WITHIN = 5.0
_TRIES = 4
_BACKOFF = Backoff(first=0.5, ceiling=10.0)
_LONGEST_ANSWER = 120.0
_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_VLLM_TIERS = ("# TYPE vllm:kv_offload_", "# TYPE vllm:simple_kv_offload_", "# TYPE lmcache:")
_SGLANG_TIERS = ("hicache_storage_backend", "enable_lmcache", "enable_flexkv")
_TOOL = ToolSpec("probe", "", {"type": "object", "properties": {}})
_TRIAL = Usage(32, 0, 1)


@dataclass(frozen=True, slots=True)
class ServedModel:
    name: str
    owner: str = ""
    context_tokens: int | None = None
    longest_answer: int | None = None


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server said of itself, beside its models."""

    version: str | None = None
    prefix_cache: bool | None = None
    kv_tokens: int | None = None
    """Room in its fast memory, of all its engines together."""
    kv_kept: int | None = None
    """The same, or the room of a slower tier behind it: that holds copies, so the larger one counts, not their sum.
    None for a tier whose size in tokens cannot be known."""
    metrics: bool | None = None
    sessions: bool | None = None
    """It keeps an agent's cache until the agent is said to be done."""
    priority: bool | None = None
    tool_parser: bool | None = None
    """Without one SGLang takes tools without complaint, and gives calls back as text."""


async def list_models(server: ServerClient, *, may_be_missing: bool) -> list[ServedModel]:
    """Raises BackendError for a server that cannot be asked."""
    try:
        body = loads(await with_retries(lambda: server.page(server.url("/models"), _WITHIN)))
    except BackendError as error:
        if may_be_missing and error.kind is ErrorKind.NOT_FOUND:  # some gateways list none
            return []
        if error.kind is ErrorKind.CONNECTION and server.root.scheme == "http":
            raise BackendError(error.kind, f"{error} If it speaks TLS, write https://.") from None
        raise
    except BadJson as error:
        address = display_url(server.url("/models"))
        raise BackendError(
            ErrorKind.NOT_FOUND, f"{address} does not answer with JSON: is it an inference server?"
        ) from error
    listed = body.get("data") if isinstance(body, dict) else None
    return [_served(entry) for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []


def select_model(served: list[ServedModel], model: str | None, url: URL) -> ServedModel:
    """The model to use. Raises SpecError, with what is close, for one that is not served."""
    names = [entry.name for entry in served]
    if model is None:
        if len(served) == 1:
            return served[0]
        listed = f"it serves {', '.join(names[:8])}" if names else "it lists none"
        raise SpecError(f"Name a model with model=...: {display_url(url)} does not serve exactly one ({listed}).")
    if not served:
        return ServedModel(model)
    for entry in served:
        if entry.name == model:
            return entry
    close = get_close_matches(model, names, n=3) or names[:8]
    raise SpecError(
        f"model={model!r} is not served at {display_url(url)}. Did you mean {' or '.join(map(repr, close))}?"
    )


async def takes_tools(
    backend: Backend,
    model: str,
    *,
    refuses_at_once: bool = False,
    tell: Callable[[Usage], None] | None = None,
    tools: tuple[ToolSpec, ...] = (_TOOL,),
) -> BackendError | None:
    """One token with a tool on offer: the refusal of a server without a tool parser, or None if there was none.

    Of a server that refuses at once, the head of a stream is answer enough: nobody waits for the token. `tell` hears
    what it took, estimated where nobody waits for the server to say it."""
    request = Request(Prompt("", tools), (User("Hi"),), model, Sampling(max_tokens=1), stream=refuses_at_once)

    async def ask() -> BackendError | None:
        try:
            async with probe_timeout(), backend.stream(request) as deltas:
                usage = _TRIAL
                if not refuses_at_once:
                    async for delta in deltas:
                        usage = delta.usage if isinstance(delta, Finished) else usage
                if tell is not None:
                    tell(usage)
        except BackendError as error:
            if error.kind is ErrorKind.BAD_REQUEST:
                return error
            raise
        return None

    return await with_retries(ask)


@asynccontextmanager
async def probe_timeout() -> AsyncIterator[None]:
    """Raises BackendError for a server that takes a request and does not answer."""
    try:
        async with asyncio.timeout(_LONGEST_ANSWER):
            yield
    except TimeoutError as error:
        message = f"The server takes requests, but did not answer one within {_LONGEST_ANSWER:.0f} s."
        raise BackendError(ErrorKind.TURN_TIMEOUT, message) from error


async def inspect_server(server: ServerClient, flavor: Flavor) -> ServerInfo:
    """What can be seen beside the API. Never raises: a server may hide all of it."""
    match flavor.name:
        case "vllm":
            version, metrics = await _both(server, "/version", "/metrics")
            return replace(_seen_of_vllm(metrics), version=version.word("version"))
        case "sim":
            return _seen_of_vllm(await _beside(server, "/metrics"))
        case "sglang":
            return await _look_at_sglang(server)
        case "dynamo":
            return ServerInfo(metrics=(await _beside(server, "/metrics")).is_there)
        case _:
            return ServerInfo()


async def with_retries(ask: Callable[[], Awaitable[T]]) -> T:
    """Asks again, a few times, when the server is busy; one that is not there is not waited for."""
    for tried in range(_TRIES):
        try:
            return await ask()
        except BackendError as error:
            if not error.retryable or error.status is None or tried == _TRIES - 1:
                raise
            await asyncio.sleep(min(_BACKOFF.ceiling, error.retry_after or _BACKOFF.delay(tried)))
    raise AssertionError("unreachable")


def _served(entry: dict[str, Any]) -> ServedModel:
    meta = entry.get("meta")
    context = (
        entry.get("max_model_len")
        or entry.get("context_window")
        or entry.get("max_input_tokens")
        or (meta.get("n_ctx") if isinstance(meta, dict) else None)
    )
    owner = entry.get("owned_by") or ("anthropic" if entry.get("type") == "model" else "")
    return ServedModel(str(entry.get("id")), str(owner), _count(context), _count(entry.get("max_tokens")))


def _seen_of_vllm(metrics: "_Page") -> ServerInfo:
    found = [dict(_LABEL.findall(labels)) for labels in _CACHE_CONFIG.findall(metrics.text)]
    labels = found[0] if found else {}
    tokens = _vllm_tokens({labels.get("engine", ""): labels for labels in found})
    # --kv-offloading-size shows in GiB, --kv-transfer-config only by its metrics, and neither what a token takes. Such
    # a tier is many times the GPU's memory, so no limit is nearer to the truth than the GPU's.
    has_tier = labels.get("kv_offloading_size", "None") != "None" or any(mark in metrics.text for mark in _VLLM_TIERS)
    return ServerInfo(
        prefix_cache=labels["enable_prefix_caching"] == "True" if "enable_prefix_caching" in labels else None,
        kv_tokens=tokens,
        kv_kept=None if has_tier else tokens,
        metrics=metrics.is_there,
    )


def _vllm_tokens(engines: dict[str, dict[str, str]]) -> int | None:
    """`kv_cache_size_tokens` is one engine's, and right for hybrid models too; `num_gpu_blocks` is, on each engine's
    line, already that of all engines."""
    sizes = [labels.get("kv_cache_size_tokens", "") for labels in engines.values()]
    if sizes and all(size.isdecimal() for size in sizes):
        return sum(map(int, sizes)) or None
    for labels in engines.values():
        blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
        if blocks.isdecimal() and size.isdecimal():
            return int(blocks) * int(size) or None
    return None


async def _look_at_sglang(server: ServerClient) -> ServerInfo:
    info, metrics = await _both(server, "/server_info", "/metrics")
    said = info.parsed
    of_one, engines = _count(said.get("max_total_num_tokens")), _count(said.get("dp_size")) or 1
    kept = _sglang_kept(said, of_one) if of_one else None
    return ServerInfo(
        version=info.word("version"),
        prefix_cache=not said["disable_radix_cache"] if "disable_radix_cache" in said else None,
        kv_tokens=of_one * engines if of_one else None,
        kv_kept=kept * engines if kept else None,
        metrics=metrics.is_there,
        sessions=_flag(said.get("enable_session_radix_cache")),
        priority=_flag(said.get("enable_priority_scheduling")),
        tool_parser=bool(said["tool_call_parser"]) if "tool_call_parser" in said else None,
    )


def _sglang_kept(said: dict[str, Any], fast: int) -> int | None:
    """One engine's room with HiCache, whose host memory is a number of GB, or a multiple of the GPU's tokens."""
    if any(said.get(name) for name in _SGLANG_TIERS):
        return None
    if not said.get("enable_hierarchical_cache") or said.get("hicache_host_memory_mode") == "buffer_only":
        return fast
    try:
        if size := said.get("hicache_size"):
            memory = said["internal_states"][0]["memory_usage"]
            host = size * 1e9 * memory["token_capacity"] / (memory["kvcache"] * 2**30)
        else:
            host = said["hicache_ratio"] * fast
        return max(fast, int(host))
    except (LookupError, TypeError, ArithmeticError, ValueError):
        return None


async def _both(server: ServerClient, one: str, other: str) -> tuple["_Page", "_Page"]:
    async with asyncio.TaskGroup() as group:
        first, second = group.create_task(_beside(server, one)), group.create_task(_beside(server, other))
    return first.result(), second.result()


def admin_url(root: URL, path: str) -> URL:
    """What stands beside the API, where the server has its other pages."""
    return root.with_path(root.path.rstrip("/").removesuffix("/v1") + path).with_query(root.query)


@dataclass(frozen=True, slots=True)
class _Page:
    """One of a server's other pages. `is_there` is None where nobody knows."""

    is_there: bool | None
    text: str = ""

    @property
    def parsed(self) -> dict[str, Any]:
        try:
            value = loads(self.text.encode())
        except BadJson:
            return {}
        return value if isinstance(value, dict) else {}

    def word(self, name: str) -> str | None:
        value = self.parsed.get(name)
        return value if isinstance(value, str) else None


async def _beside(server: ServerClient, path: str) -> _Page:
    try:
        return _Page(True, (await server.page(admin_url(server.root, path), _BESIDE_WITHIN)).decode(errors="replace"))
    except BackendError as error:
        return _Page(False if error.status is not None else None)


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
