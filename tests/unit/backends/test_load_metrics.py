"""What servers say of their load and their room, on pages of real servers (vLLM 0.32.0, SGLang 0.5.23)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import orjson
import pytest
from tests.support.loopback_servers import Line, RawRequest, RawServer, raw_server, server_at

from batch_agent.backends.connect import connect
from batch_agent.backends.diagnostics import DiagnosticCheck, diagnose
from batch_agent.backends.flavors import VLLM
from batch_agent.backends.http_backend import HttpBackend
from batch_agent.backends.load_metrics import LoadReader, load_reader_for, sglang_loads, sglang_metrics, vllm_metrics
from batch_agent.core.messages import Prompt, User
from batch_agent.core.protocols.backend import ServerLoad, Traits
from batch_agent.core.requests import Request, Sampling
from batch_agent.sim import Script, SimConfig, SimServer

VLLM_PAGE = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="smollm2"} 63.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="smollm2"} 18.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="smollm2",reason="capacity"} 16.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="smollm2",reason="deferred"} 2.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="smollm2"} 0.17744154057771666
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="smollm2"} 9999.0
# TYPE vllm:prefix_cache_queries_created gauge
vllm:prefix_cache_queries_created{engine="0",model_name="smollm2"} 1.7947349217462301e+09
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="smollm2"} 6048.0
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="smollm2"} 3.0
vllm:num_preemptions_created{engine="0",model_name="smollm2"} 1.7947349217463918e+09
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="smollm2"} 8118.0
# TYPE vllm:prompt_tokens_by_source_total counter
vllm:prompt_tokens_by_source_total{engine="0",model_name="smollm2",source="local_compute"} 2070.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="smollm2",source="local_cache_hit"} 6048.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="smollm2",source="external_kv_transfer"} 0.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="smollm2"} 705.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="32",enable_prefix_caching="True",engine="0",kv_cache_memory_bytes="1073741824",\
kv_cache_size_tokens="23296",kv_offloading_backend="native",kv_offloading_size="None",num_cpu_blocks="None",\
num_gpu_blocks="728",num_gpu_blocks_override="None"} 1.0
"""
SGLANG_LOADS = b"""{"timestamp":"2026-11-15T09:35:38.302448+00:00","version":"0.5.23","accelerator":null,\
"num_accelerators":1,"loads":[{"timestamp":1794735338.152799,"dp_rank":0,"num_running_reqs":16,"num_waiting_reqs":4,\
"num_waiting_uncached_tokens":88,"num_used_tokens":175,"num_total_tokens":259,"max_total_num_tokens":8192,\
"max_running_requests":16,"token_usage":0.0214,"gen_throughput":0.0,"cache_hit_rate":0.087,"utilization":0.0,\
"total_prefill_uncached_tokens":4292,"total_prefill_busy_us":22073885,\
"decode_moments":[98.0,1110.0,32980375.0,14726.0,424207084.0,1110.0],\
"queues":{"waiting":4,"grammar":0,"paused":0,"retracted":0,"prealloc_ready":0}}]}"""
SGLANG_METRICS = b"""\
# TYPE sglang:realtime_tokens_total counter
sglang:realtime_tokens_total{engine_type="unified",mode="prefill_compute",model_name="smollm2",priority=""} 4293.0
sglang:realtime_tokens_total{engine_type="unified",mode="decode",model_name="smollm2",priority=""} 1135.0
sglang:realtime_tokens_total{engine_type="unified",mode="prefill_cache",model_name="smollm2",priority=""} 144.0
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="smollm2",priority="",tp_rank="0"} 12.0
sglang:num_running_reqs{engine_type="unified",model_name="smollm2",priority="-9223372036854775808",tp_rank="0"} 12.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{engine_type="unified",model_name="smollm2",priority="",tp_rank="0"} 4.0
sglang:num_queue_reqs{engine_type="unified",model_name="smollm2",priority="-9223372036854775808",tp_rank="0"} 4.0
# TYPE sglang:token_usage gauge
sglang:token_usage{engine_type="unified",model_name="smollm2",priority="",tp_rank="0"} 0.02
"""
SGLANG_INFO = {
    "version": "0.5.23",
    "max_total_num_tokens": 8192,
    "dp_size": 1,
    "disable_radix_cache": False,
    "enable_hierarchical_cache": False,
    "hicache_host_memory_mode": "cache",
    "hicache_ratio": 2.0,
    "hicache_size": 0,
    "hicache_storage_backend": None,
    "internal_states": [{"memory_usage": {"weight": 0.553, "kvcache": 0.352, "token_capacity": 8192}}],
}
Pages = dict[str, bytes]


def vllm_lines(engine: int) -> bytes:
    return VLLM_PAGE.replace(b'engine="0"', b'engine="%d"' % engine)


@asynccontextmanager
async def serving(pages: Pages, owner: str = "vllm") -> AsyncIterator[RawServer]:
    """A server with these pages beside its API; tests may change them."""

    async def answer(request: RawRequest, line: Line) -> None:
        if request.path == "/v1/models":
            await line.reply(200, orjson.dumps({"data": [{"id": "m", "owned_by": owner}]}))
        elif request.path == "/v1/chat/completions":
            await line.say("Hello")
        elif request.path in pages:
            await line.reply(200, pages[request.path])
        else:
            await line.reply(404, b'{"detail": "Not Found"}')

    async with raw_server(answer) as server:
        yield server


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[HttpBackend]:
    backend = await connect(url, None, uses_tools=False, notify=lambda text: None)
    assert isinstance(backend, HttpBackend)
    try:
        yield backend
    finally:
        await backend.aclose()


async def seen(pages: Pages, owner: str = "vllm") -> Traits:
    async with serving(pages, owner) as server, connected(server.url) as backend:
        return backend.traits


def asked(server: RawServer, path: str) -> int:
    return sum(request.path == path for request in server.requests)


def test_vllm_metrics_exclude_transfers_and_cached_tokens() -> None:
    load = vllm_metrics(VLLM_PAGE)
    assert load == ServerLoad(running=63, waiting=16, kv_usage=0.17744154057771666, preemptions=3, computed=2070 + 705)


def test_older_vllm_metrics_without_labels_are_read() -> None:
    kept = [line for line in VLLM_PAGE.splitlines(keepends=True) if b"_by_" not in line]
    load = vllm_metrics(b"".join(kept))
    assert load is not None
    assert (load.waiting, load.computed) == (18, 9999 - 6048 + 705)


def test_metrics_of_several_vllm_engines_are_added_and_their_usage_averaged() -> None:
    other = vllm_lines(1).replace(b"} 0.17744154057771666", b"} 0.5").replace(b"} 63.0", b"} 7.0")
    load = vllm_metrics(VLLM_PAGE + other)
    assert load is not None
    assert (load.running, load.waiting, load.preemptions, load.computed) == (70, 32, 6, 2 * 2775)
    assert load.kv_usage == pytest.approx((0.17744154057771666 + 0.5) / 2)


def test_a_server_without_requests_reports_an_idle_load() -> None:
    started = [line for line in VLLM_PAGE.splitlines(keepends=True) if b"cache_config" in line]
    assert vllm_metrics(b"".join(started)) == ServerLoad()
    assert sglang_metrics(b'# TYPE\nsglang:max_total_num_tokens{priority=""} 8192.0\n') == ServerLoad()


def test_metrics_of_several_sglang_ranks_are_added_and_their_usage_averaged() -> None:
    assert sglang_loads(SGLANG_LOADS) == ServerLoad(running=16, waiting=4, kv_usage=0.0214, computed=4292 + 1110)
    said = orjson.loads(SGLANG_LOADS)
    said["loads"].append({"dp_rank": 1, "num_running_reqs": 2, "num_waiting_reqs": 1, "token_usage": 0.5})
    load = sglang_loads(orjson.dumps(said))
    assert load is not None
    assert (load.running, load.waiting, load.computed) == (18, 5, 5402)
    assert load.kv_usage == pytest.approx(0.2607)


def test_sglang_metrics_count_a_request_once_whatever_its_priority() -> None:
    assert sglang_metrics(SGLANG_METRICS) == ServerLoad(running=12, waiting=4, kv_usage=0.02, computed=4293 + 1135)


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"<html>Welcome</html>",
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        b'{"loads": 3}',
        b'{"loads": [null, 4, {}]}',
        b"# TYPE\nvllm:num_requests_running",
        b"# TYPE\nvllm:num_requests_running{",
        b'# TYPE\nvllm:num_requests_running{engine="0"} many\nvllm:num_requests_running{engine="0"}\n',
        b'# TYPE\nvllm:num_requests_running{engine="0"} NaN\nsglang:num_running_reqs{priority=""} +Inf\n',
        b"# TYPE\nvllm:num_requests_running_other 3.0\n",
    ],
)
def test_metrics_of_another_program_give_no_load(page: bytes) -> None:
    assert vllm_metrics(page) is None
    assert sglang_metrics(page) is None
    assert sglang_loads(page) is None


def test_invalid_numbers_in_metrics_are_ignored() -> None:
    page = b"# TYPE\nvllm:num_requests_running 3.0\nvllm:num_preemptions_total NaN\nvllm:kv_cache_usage_perc +Inf\n"
    assert vllm_metrics(page) == ServerLoad(running=3)
    said = {"num_running_reqs": 1, "num_waiting_reqs": None, "token_usage": "high", "decode_moments": [1, 2, "x"]}
    assert sglang_loads(orjson.dumps({"loads": [said]})) == ServerLoad(running=1, kv_usage=0.0)


@pytest.mark.parametrize(
    ("owner", "pages", "running"),
    [
        ("vllm", {"/metrics": VLLM_PAGE}, 63),
        ("sglang", {"/v1/loads": SGLANG_LOADS, "/metrics": SGLANG_METRICS}, 16),
        ("sglang", {"/metrics": SGLANG_METRICS}, 12),
        ("nvidia", {"/metrics": VLLM_PAGE}, None),
        ("llamacpp", {"/metrics": VLLM_PAGE}, None),
        ("somebody", {"/metrics": VLLM_PAGE}, None),
        ("vllm", {}, None),
    ],
)
async def test_a_backend_reports_the_load_of_its_server(owner: str, pages: Pages, running: int | None) -> None:
    async with serving(pages, owner) as server, connected(server.url) as backend:
        load = await backend.load()
        assert (load and load.running) == running


async def test_a_missing_load_page_of_an_older_sglang_is_requested_only_once() -> None:
    async with serving({"/metrics": SGLANG_METRICS}, "sglang") as server, connected(server.url) as backend:
        for _ in range(3):
            assert await backend.load() is not None
        assert asked(server, "/v1/loads") == 1


async def test_a_failing_metrics_page_is_not_requested_for_a_while() -> None:
    now = 100.0
    pages: Pages = {}
    async with serving(pages) as server, aclosing(server_at(server.url)) as found:
        pages_of_vllm = (("/metrics", vllm_metrics),)
        loads = LoadReader(found, pages_of_vllm, clock=lambda: now)
        assert [await loads.poll() for _ in range(20)] == [None] * 20
        assert asked(server, "/metrics") == 3
        pages["/metrics"] = VLLM_PAGE
        now += 29
        assert await loads.poll() is None
        now += 2
        assert await loads.poll() is not None
        pages["/metrics"] = b"restarting"
        assert await loads.poll() is None
        assert await loads.poll() is None
        pages["/metrics"] = VLLM_PAGE
        assert await loads.poll() is not None
        assert asked(server, "/metrics") == 7


async def test_an_unreachable_server_has_no_load_and_raises_nothing() -> None:
    async def hang_up(request: RawRequest, line: Line) -> None:
        line.reset()

    async with raw_server(hang_up) as server:
        found = server_at(server.url)
        look = load_reader_for(found, VLLM)
        assert look is not None
        assert await look() is None
    assert await look() is None
    await found.aclose()
    assert await look() is None


async def test_the_kv_capacity_of_vllm_is_the_sum_of_its_engines() -> None:
    assert (await seen({"/metrics": VLLM_PAGE})).kv_tokens == 23_296
    # vLLM writes the blocks of all engines on the line of each.
    two = (VLLM_PAGE + vllm_lines(1)).replace(b'num_gpu_blocks="728"', b'num_gpu_blocks="1456"')
    assert (await seen({"/metrics": two})).kv_tokens == 2 * 23_296
    older = two.replace(b'kv_cache_size_tokens="23296",', b"")
    assert (await seen({"/metrics": older})).kv_tokens == 2 * 23_296


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'enable_prefix_caching="True"', b'enable_prefix_caching="False"'),
        (b"# TYPE vllm:generation", b"# TYPE vllm:kv_offload_cpu_cache_usage_perc gauge\n# TYPE vllm:generation"),
        (
            b"# TYPE vllm:generation",
            b"# TYPE vllm:lmcache_mp_lookup_duration_seconds histogram\n# TYPE vllm:generation",
        ),
        (b"vllm:cache_config_info{", b"vllm:cache_config_other{"),
    ],
    ids=["no prefix cache", "offloading by a connector", "LMCache", "not said"],
)
async def test_no_kv_capacity_is_reported_without_a_prefix_cache_or_with_an_unknown_tier(
    old: bytes, new: bytes
) -> None:
    page = VLLM_PAGE.replace(old, new)
    assert page != VLLM_PAGE
    assert (await seen({"/metrics": page})).kv_tokens is None


async def test_a_host_tier_counts_with_the_device_until_its_size_in_tokens_is_known() -> None:
    page = VLLM_PAGE.replace(b'kv_offloading_size="None"', b'kv_offloading_size="2.0"')
    traits = await seen({"/metrics": page})
    assert (traits.kv_tokens, traits.kv_running_tokens) == (23_296, 23_296)


def host_page(*lines: bytes) -> bytes:
    page = VLLM_PAGE.replace(b'kv_offloading_size="None"', b'kv_offloading_size="2.0"')
    return page + b"".join(line + b"\n" for line in lines)


def test_the_host_tier_has_no_size_in_tokens_without_a_tier_or_before_its_first_copy() -> None:
    stored = b'vllm:kv_offload_store_bytes_total{engine="0"} 4096000.0\n'
    for page in (VLLM_PAGE, VLLM_PAGE + stored, host_page()):
        load = vllm_metrics(page)
        assert load is not None
        assert load.kv_host_tokens is None


def test_the_bytes_of_a_token_follow_from_what_was_loaded_from_the_host_tier() -> None:
    load = vllm_metrics(
        host_page(
            b'vllm:external_prefix_cache_hits_total{engine="0"} 1000.0',
            b'vllm:kv_offload_load_bytes_total{engine="0"} 65536000.0',
            b'vllm:kv_offload_store_bytes_total{engine="0"} 1.0',
        )
    )
    assert load is not None
    assert load.kv_host_tokens == 2 * 2**30 // 65_536


def test_before_the_first_load_they_follow_from_what_was_stored_of_what_was_computed() -> None:
    page = b"# HELP\n" + b"\n".join(
        [
            b'vllm:cache_config_info{engine="0",kv_offloading_size="2.0"} 1.0',
            b'vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 900.0',
            b'vllm:prompt_tokens_by_source_total{engine="0",source="local_cache_hit"} 5000.0',
            b'vllm:generation_tokens_total{engine="0"} 100.0',
            b'vllm:kv_offload_store_bytes_total{engine="0"} 65536000.0',
        ]
    )
    load = vllm_metrics(page)
    assert load is not None
    assert load.kv_host_tokens == 2 * 2**30 // 65_536


def test_without_prompt_tokens_by_source_the_cache_says_what_was_computed() -> None:
    page = b"# HELP\n" + b"\n".join(
        [
            b'vllm:cache_config_info{engine="0",kv_offloading_size="2.0"} 1.0',
            b'vllm:prefix_cache_queries_total{engine="0"} 5900.0',
            b'vllm:prefix_cache_hits_total{engine="0"} 5000.0',
            b'vllm:generation_tokens_total{engine="0"} 100.0',
            b'vllm:kv_offload_store_bytes_total{engine="0"} 65536000.0',
        ]
    )
    load = vllm_metrics(page)
    assert load is not None
    assert load.kv_host_tokens == 2 * 2**30 // 65_536


@pytest.mark.parametrize(
    ("said", "tokens"),
    [
        ({}, 8192),
        ({"dp_size": 4}, 4 * 8192),
        ({"disable_radix_cache": True}, None),
        ({"enable_hierarchical_cache": True}, 2 * 8192),
        ({"enable_hierarchical_cache": True, "hicache_ratio": 0.5}, 8192),
        ({"enable_hierarchical_cache": True, "dp_size": 2, "hicache_ratio": 3}, 6 * 8192),
        ({"enable_hierarchical_cache": True, "hicache_size": 10}, 216_744),
        ({"enable_hierarchical_cache": True, "hicache_size": 10, "internal_states": []}, None),
        ({"enable_hierarchical_cache": True, "hicache_ratio": None}, None),
        ({"enable_hierarchical_cache": True, "hicache_host_memory_mode": "buffer_only"}, 8192),
        ({"enable_hierarchical_cache": True, "hicache_storage_backend": "file"}, None),
        ({"max_total_num_tokens": "many"}, None),
    ],
)
async def test_sglangs_kv_capacity_is_that_of_its_largest_tier(said: dict[str, object], tokens: int | None) -> None:
    info = orjson.dumps(SGLANG_INFO | said)
    assert (await seen({"/server_info": info}, "sglang")).kv_tokens == tokens


async def test_a_server_that_reports_no_kv_capacity_has_none() -> None:
    assert (await seen({"/metrics": VLLM_PAGE}, "llamacpp")).kv_tokens is None


async def test_doctor_reports_the_load_of_the_server() -> None:
    async with serving({"/metrics": VLLM_PAGE}) as server:
        found = {check.name: check async for check in diagnose(server.url, None, lambda text: None)}
    assert found["load"].found == "63 running, 16 waiting, 18% of the KV cache in use"
    assert found["KV cache"].found == "capacity of 23,296 tokens"


async def diagnosed(pages: Pages, owner: str = "vllm") -> dict[str, DiagnosticCheck]:
    async with serving(pages, owner) as server:
        return {check.name: check async for check in diagnose(server.url, None, lambda text: None)}


@pytest.mark.parametrize(("version", "state"), [("0.26.0", "warning"), ("0.26.1+cu130", "warning"), ("0.32.0", "ok")])
async def test_doctor_warns_of_a_host_tier_with_which_the_engine_dies(version: str, state: str) -> None:
    tier = VLLM_PAGE.replace(b'kv_offloading_size="None"', b'kv_offloading_size="16.0"')
    pages = {"/metrics": tier, "/version": orjson.dumps({"version": version})}
    check = (await diagnosed(pages))["second tier"]
    assert check.state == state
    assert check.found.startswith("host memory of 16.0 GiB")
    assert ("without --kv-offloading-size" in check.advice) == (state == "warning")
    assert "second tier" not in await diagnosed(pages | {"/metrics": VLLM_PAGE})


@pytest.mark.parametrize("mark", [b"vllm:lmcache_mp_lookup_duration_seconds", b"lmcache:num_hit_tokens_total"])
async def test_doctor_names_lmcache_and_does_not_warn_of_it(mark: bytes) -> None:
    page = VLLM_PAGE.replace(b"# TYPE vllm:generation", b"# TYPE " + mark + b" histogram\n# TYPE vllm:generation")
    check = (await diagnosed({"/metrics": page, "/version": b'{"version": "0.26.0"}'}))["second tier"]
    assert (check.state, check.found.partition(";")[0]) == ("ok", "LMCache")


@pytest.mark.parametrize(
    ("said", "state", "found"),
    [
        ({}, None, ""),
        ({"radix_eviction_policy": "priority"}, "ok", "not told when an agent has ended"),
        ({"radix_eviction_policy": "priority", "enable_session_radix_cache": True}, "ok", "that have ended first"),
        (
            {"radix_eviction_policy": "priority", "schedule_low_priority_values_first": True},
            "warning",
            "the least urgent is kept",
        ),
    ],
)
async def test_doctor_says_what_sglang_evicts_first(said: dict[str, object], state: str | None, found: str) -> None:
    info = orjson.dumps(SGLANG_INFO | said)
    check = (await diagnosed({"/server_info": info}, "sglang")).get("eviction")
    assert (check and check.state) == state
    assert check is None or found in check.found


async def test_doctor_says_which_options_make_dynamo_act_on_hints() -> None:
    routed = b"# HELP\n# TYPE dynamo_frontend_router_queue_pending_requests gauge\n"
    found = await diagnosed({"/metrics": routed}, "nvidia")
    assert (found["KV routing"].state, found["agent hints"].state) == ("ok", "unknown")
    assert "--router-session-affinity-ttl-secs" in found["agent hints"].advice
    assert (await diagnosed({"/metrics": b"# HELP\n"}, "nvidia"))["KV routing"].state == "off"
    assert "KV routing" not in await diagnosed({}, "nvidia")


async def test_the_simulator_reports_its_load_and_kv_capacity() -> None:
    config = SimConfig(num_blocks=512, block_size=16, max_num_seqs=2, step_base_ms=2.0)
    with SimServer(config, Script(answer_tokens=2000)) as sim:
        async with connected(sim.url) as backend:
            assert backend.traits.kv_tokens == 512 * 16
            assert await backend.load() == ServerLoad(kv_usage=0.0)
            before, during = await _loads_of_three_requests(backend)
    assert (during.running, during.waiting) == (2, 1)
    assert during.kv_usage is not None
    assert during.kv_usage > 0
    assert during.computed > before.computed > 0


async def test_a_simulator_without_a_prefix_cache_has_no_kv_capacity() -> None:
    with SimServer(SimConfig(zero_latency=True, prefix_caching=False)) as sim:
        async with connected(sim.url) as backend:
            assert backend.traits.kv_tokens is None


async def _loads_of_three_requests(backend: HttpBackend) -> tuple[ServerLoad, ServerLoad]:
    """Two looks while they run: the first that sees all of them, and a later one that saw more computed."""

    async def ask(number: int) -> None:
        request = Request(Prompt(""), (User(f"Count to {number}."),), backend.traits.model, Sampling(max_tokens=2000))
        async with backend.stream(request) as deltas:
            async for _ in deltas:
                pass

    async def until_computed(more_than: int) -> ServerLoad:
        while True:
            load = await backend.load()
            assert load is not None
            if load.running == 2 and load.waiting == 1 and load.computed > more_than:
                return load

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        asking = [group.create_task(ask(number)) for number in range(3)]
        first = await until_computed(0)
        later = await until_computed(first.computed)
        for task in asking:
            task.cancel()
    return first, later


def test_pinned_contexts_of_waiting_agents_do_not_count_as_use_of_the_cache() -> None:
    pinned = VLLM_PAGE + b'batch_agent:pinned_share{engine="0",model_name="smollm2"} 0.1\n'
    plain, with_pins = vllm_metrics(VLLM_PAGE), vllm_metrics(pinned)
    assert plain is not None
    assert with_pins is not None
    assert plain.kv_usage is not None
    assert with_pins.kv_usage == pytest.approx(plain.kv_usage - 0.1)
