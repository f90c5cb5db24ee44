"""What a server says of its own load: pure readers of its pages, and one that asks for them."""

import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ..core.errors import BackendError
from ..core.protocols import ServerLoad
from .flavors import Flavor
from .http.client import ServerClient
from .http.json_body import BadJson, loads
from .probe import admin_url

_WITHIN = 2.0
_PATIENCE = 3
_PAUSE = 30.0
Page = tuple[str, Callable[[bytes], ServerLoad | None]]
Samples = list[tuple[bytes, float]]


class LoadReader:
    """One server, asked for its load. Of several pages the first that says something is kept to. A server that did not
    answer three times in a row is left alone for a while."""

    def __init__(
        self, server: ServerClient, pages: tuple[Page, ...], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._server = server
        self._pages = pages
        self._clock = clock
        self._failures = 0
        self._silent_until = -math.inf

    async def look(self) -> ServerLoad | None:
        """Never raises BackendError, and takes no longer than a few seconds."""
        if self._clock() < self._silent_until or self._server.is_closed:
            return None
        load = await self._ask()
        self._failures = 0 if load is not None else self._failures + 1
        if self._failures >= _PATIENCE:
            self._silent_until = self._clock() + _PAUSE
        return load

    async def _ask(self) -> ServerLoad | None:
        for page in self._pages:
            path, read = page
            try:
                load = read(await self._server.page(admin_url(self._server.root, path), _WITHIN))
            except BackendError as error:
                if error.status is None:  # nobody answers: the next page would only take as long
                    return None
                continue
            if load is not None:
                self._pages = (page,)
                return load
        return None


def loads_of(server: ServerClient, flavor: Flavor) -> Callable[[], Awaitable[ServerLoad | None]] | None:
    """How this kind of server is asked; None for one that does not say."""
    pages = _PAGES.get(flavor.name)
    return LoadReader(server, pages).look if pages is not None else None


def vllm_metrics(page: bytes) -> ServerLoad | None:
    """vLLM's /metrics. Engines of one server (data parallel) are added up."""
    running = _samples(page, b"vllm:num_requests_running")
    # With several API processes a gauge is missing until its first request; this line is there from the start.
    if not running and b"\nvllm:cache_config_info{" not in page:
        return None
    # What waits for a transfer of its KV ("deferred") does not wait for room.
    waiting = _samples(page, b"vllm:num_requests_waiting_by_reason", b'reason="capacity"')
    prompts = _samples(page, b"vllm:prompt_tokens_by_source_total")
    # By source a prompt counts once, at its first token. The cache's own counters also move while requests run, but
    # vLLM 0.26 counts a request again in each step in which there is no room for it.
    new = _sum([(labels, value) for labels, value in prompts if b'source="local_cache_hit"' not in labels])
    if not prompts:
        new = _total(page, b"vllm:prefix_cache_queries_total") - _total(page, b"vllm:prefix_cache_hits_total")
    return ServerLoad(
        running=_sum(running),
        waiting=_sum(waiting) if waiting else _total(page, b"vllm:num_requests_waiting"),
        kv_usage=_mean(_samples(page, b"vllm:kv_cache_usage_perc")),
        preemptions=_total(page, b"vllm:num_preemptions_total"),
        computed=max(0, new) + _total(page, b"vllm:generation_tokens_total"),
    )


def sglang_loads(page: bytes) -> ServerLoad | None:
    """SGLang's /v1/loads: what each data parallel rank publishes, at each prefill and every 15 decoding steps. It has
    no counter of preemptions; `decode_moments` leaves out some steps, so `computed` is a few percent low."""
    try:
        said = loads(page)
    except BadJson:
        return None
    listed = said.get("loads") if isinstance(said, dict) else None
    ranks = [rank for rank in listed if isinstance(rank, dict)] if isinstance(listed, list) else []
    if not any("num_running_reqs" in rank for rank in ranks):
        return None
    moments = [rank.get("decode_moments") for rank in ranks]
    generated = [moment[5] for moment in moments if isinstance(moment, list) and len(moment) > 5]
    return ServerLoad(
        running=_added(rank.get("num_running_reqs") for rank in ranks),
        waiting=_added(rank.get("num_waiting_reqs") for rank in ranks),
        kv_usage=_mean([(b"", _number(rank["token_usage"])) for rank in ranks if "token_usage" in rank]),
        computed=_added(rank.get("total_prefill_uncached_tokens") for rank in ranks) + _added(generated),
    )


def sglang_metrics(page: bytes) -> ServerLoad | None:
    """SGLang's /metrics, for versions without /v1/loads: there with --enable-metrics, and some steps old. With
    priorities each gauge is said for all requests, under an empty name, and again for each priority."""
    running = _of_all(_samples(page, b"sglang:num_running_reqs"))
    if not running and b"\nsglang:max_total_num_tokens{" not in page:
        return None
    tokens = _samples(page, b"sglang:realtime_tokens_total")
    return ServerLoad(
        running=_sum(running),
        waiting=_sum(_of_all(_samples(page, b"sglang:num_queue_reqs"))),
        kv_usage=_mean(_of_all(_samples(page, b"sglang:token_usage"))),
        preemptions=_total(page, b"sglang:num_retracted_requests_total"),
        computed=_sum([(labels, value) for labels, value in tokens if b'mode="prefill_cache"' not in labels]),
    )


_PAGES: dict[str, tuple[Page, ...]] = {
    "vllm": (("/metrics", vllm_metrics),),
    "sim": (("/metrics", vllm_metrics),),
    "sglang": (("/v1/loads", sglang_loads), ("/metrics", sglang_metrics)),
}


def _samples(page: bytes, name: bytes, label: bytes = b"") -> Samples:
    """The labels and the value of each line of one metric. Looked for by its name: a page has 50,000 characters, and is
    read again and again. It begins with a comment."""
    found = []
    at = page.find(b"\n" + name)
    while at >= 0:
        start = at + 1 + len(name)
        end = page.find(b"\n", start)
        labels, _, value = page[start : end if end >= 0 else None].rpartition(b"}")
        number = _parsed(value) if page[start : start + 1] in (b"{", b" ") and label in labels else None
        if number is not None:
            found.append((labels, number))
        at = page.find(b"\n" + name, start)
    return found


def _parsed(text: bytes) -> float | None:
    words = text.split()
    try:
        number = float(words[0]) if words else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _of_all(samples: Samples) -> Samples:
    return [(labels, value) for labels, value in samples if b"priority=" not in labels or b'priority=""' in labels]


def _total(page: bytes, name: bytes) -> int:
    return _sum(_samples(page, name))


def _sum(samples: Samples) -> int:
    return int(sum(value for _, value in samples))


def _mean(samples: Samples) -> float | None:
    return sum(value for _, value in samples) / len(samples) if samples else None


def _added(values: Any) -> int:
    return int(sum(map(_number, values)))


def _number(value: Any) -> float:
    return value if isinstance(value, int | float) and math.isfinite(value) else 0.0
