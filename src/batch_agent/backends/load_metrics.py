"""Load of a server, from its metrics pages: pure parsers, and the reader that polls the pages."""

import math
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ..core.errors import BackendError
from ..core.protocols.backend import ServerLoad
from .flavors import Flavor
from .http.client import ServerClient
from .http.json_body import BadJson, loads
from .probe import admin_url

_TIMEOUT = 2.0
_MAX_FAILURES = 3
_PAUSE = 30.0
_HOST_GIB = re.compile(rb'\nvllm:cache_config_info\{[^\n]*kv_offloading_size="([0-9.]+)"')
LoadPage = tuple[str, Callable[[bytes], ServerLoad | None]]
Samples = list[tuple[bytes, float]]


class LoadReader:
    """Polls the load of one server. Of several pages, the first that reports a load is used from then on. After three
    failures in a row, polling pauses for a while."""

    def __init__(
        self, server: ServerClient, pages: tuple[LoadPage, ...], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._server = server
        self._pages = pages
        self._clock = clock
        self._failures = 0
        self._paused_until = -math.inf

    async def poll(self) -> ServerLoad | None:
        """The current load, or None. Never raises BackendError, and takes a few seconds at most."""
        if self._clock() < self._paused_until or self._server.is_closed:
            return None
        load = await self._fetch()
        self._failures = 0 if load is not None else self._failures + 1
        if self._failures >= _MAX_FAILURES:
            self._paused_until = self._clock() + _PAUSE
        return load

    async def _fetch(self) -> ServerLoad | None:
        for page in self._pages:
            path, read = page
            try:
                load = read(await self._server.get(admin_url(self._server.root, path), _TIMEOUT))
            except BackendError as error:
                if error.status is None:  # no response: the next page would time out as well
                    return None
                continue
            if load is not None:
                self._pages = (page,)
                return load
        return None


def load_reader_for(server: ServerClient, flavor: Flavor) -> Callable[[], Awaitable[ServerLoad | None]] | None:
    """Polls the load of this kind of server; None for servers that do not report it."""
    pages = _PAGES.get(flavor.name)
    return LoadReader(server, pages).poll if pages is not None else None


def vllm_metrics(page: bytes) -> ServerLoad | None:
    """Parses vLLM's /metrics. The engines of one server (data parallel) are added up."""
    running = _samples(page, b"vllm:num_requests_running")
    # With several API processes a gauge is missing until its first request; this line always exists.
    if not running and b"\nvllm:cache_config_info{" not in page:
        return None
    # Requests that wait for a KV transfer ("deferred") do not wait for capacity.
    waiting = _samples(page, b"vllm:num_requests_waiting_by_reason", b'reason="capacity"')
    prompts = _samples(page, b"vllm:prompt_tokens_by_source_total")
    # By source, a prompt counts once, at its first token. The cache's own counters also move while requests run, but
    # vLLM 0.26 counts a request again in each step in which it does not fit.
    new = _sum([(labels, value) for labels, value in prompts if b'source="local_cache_hit"' not in labels])
    if not prompts:
        new = _new_tokens(page)
    return ServerLoad(
        running=_sum(running),
        waiting=_sum(waiting) if waiting else _total(page, b"vllm:num_requests_waiting"),
        kv_usage=_without_pins(page, _mean(_samples(page, b"vllm:kv_cache_usage_perc"))),
        preemptions=_total(page, b"vllm:num_preemptions_total"),
        computed=max(0, new) + _total(page, b"vllm:generation_tokens_total"),
        kv_host_tokens=vllm_host_tokens(page),
    )


def _new_tokens(page: bytes) -> int:
    """Prompt tokens without cache hits, as the cache counts them."""
    return _total(page, b"vllm:prefix_cache_queries_total") - _total(page, b"vllm:prefix_cache_hits_total")


def vllm_host_tokens(page: bytes) -> int | None:
    """Capacity of vLLM's own KV cache in host memory. Its size is given in GiB; the bytes of a token follow from what
    was copied to it or from it so far. None without such a tier, and before the first copy."""
    size = _HOST_GIB.search(page)
    if size is None:
        return None
    copied, tokens = (
        _total(page, b"vllm:kv_offload_load_bytes_total"),
        _total(page, b"vllm:external_prefix_cache_hits_total"),
    )
    if not (copied and tokens):
        computed = _samples(page, b"vllm:prompt_tokens_by_source_total", b'source="local_compute"')
        copied = _total(page, b"vllm:kv_offload_store_bytes_total")
        tokens = (_sum(computed) if computed else _new_tokens(page)) + _total(page, b"vllm:generation_tokens_total")
    return int(float(size[1]) * 2**30 * tokens / copied) if copied and tokens else None


def sglang_loads(page: bytes) -> ServerLoad | None:
    """Parses SGLang's /v1/loads, which each data parallel rank updates at each prefill and every 15 decoding steps. It
    has no counter of preemptions; `decode_moments` omits some steps, so `computed` is a few percent low."""
    try:
        reply = loads(page)
    except BadJson:
        return None
    entries = reply.get("loads") if isinstance(reply, dict) else None
    ranks = [rank for rank in entries if isinstance(rank, dict)] if isinstance(entries, list) else []
    if not any("num_running_reqs" in rank for rank in ranks):
        return None
    moments = [rank.get("decode_moments") for rank in ranks]
    generated = [moment[5] for moment in moments if isinstance(moment, list) and len(moment) > 5]
    return ServerLoad(
        running=_total_of(rank.get("num_running_reqs") for rank in ranks),
        waiting=_total_of(rank.get("num_waiting_reqs") for rank in ranks),
        kv_usage=_mean([(b"", _number(rank["token_usage"])) for rank in ranks if "token_usage" in rank]),
        computed=_total_of(rank.get("total_prefill_uncached_tokens") for rank in ranks) + _total_of(generated),
    )


def sglang_metrics(page: bytes) -> ServerLoad | None:
    """Parses SGLang's /metrics, for versions without /v1/loads. It needs --enable-metrics, and lags by some steps. With
    priorities, each gauge is reported for all requests, under an empty name, and again for each priority."""
    running = _without_priorities(_samples(page, b"sglang:num_running_reqs"))
    if not running and b"\nsglang:max_total_num_tokens{" not in page:
        return None
    tokens = _samples(page, b"sglang:realtime_tokens_total")
    return ServerLoad(
        running=_sum(running),
        waiting=_sum(_without_priorities(_samples(page, b"sglang:num_queue_reqs"))),
        kv_usage=_mean(_without_priorities(_samples(page, b"sglang:token_usage"))),
        preemptions=_total(page, b"sglang:num_retracted_requests_total"),
        computed=_sum([(labels, value) for labels, value in tokens if b'mode="prefill_cache"' not in labels]),
    )


_PAGES: dict[str, tuple[LoadPage, ...]] = {
    "vllm": (("/metrics", vllm_metrics),),
    "sim": (("/metrics", vllm_metrics),),
    "sglang": (("/v1/loads", sglang_loads), ("/metrics", sglang_metrics)),
}


def _samples(page: bytes, name: bytes, label: bytes = b"") -> Samples:
    """Labels and value of each line of one metric. The page is searched by name instead of parsed: it has 50,000
    characters, and is polled. It begins with a comment."""
    found = []
    at = page.find(b"\n" + name)
    while at >= 0:
        start = at + 1 + len(name)
        end = page.find(b"\n", start)
        labels, _, value = page[start : end if end >= 0 else None].rpartition(b"}")
        number = _parse_value(value) if page[start : start + 1] in (b"{", b" ") and label in labels else None
        if number is not None:
            found.append((labels, number))
        at = page.find(b"\n" + name, start)
    return found


def _parse_value(text: bytes) -> float | None:
    fields = text.split()
    try:
        number = float(fields[0]) if fields else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _without_pins(page: bytes, usage: float | None) -> float | None:
    """The plugin batch-agent-vllm holds blocks for waiting agents, and gives them up when they are needed."""
    pinned = _mean(_samples(page, b"batch_agent:pinned_share"))
    return usage if usage is None or pinned is None else max(0.0, usage - pinned)


def _without_priorities(samples: Samples) -> Samples:
    return [(labels, value) for labels, value in samples if b"priority=" not in labels or b'priority=""' in labels]


def _total(page: bytes, name: bytes) -> int:
    return _sum(_samples(page, name))


def _sum(samples: Samples) -> int:
    return int(sum(value for _, value in samples))


def _mean(samples: Samples) -> float | None:
    return sum(value for _, value in samples) / len(samples) if samples else None


def _total_of(values: Any) -> int:
    return int(sum(map(_number, values)))


def _number(value: Any) -> float:
    return value if isinstance(value, int | float) and math.isfinite(value) else 0.0
