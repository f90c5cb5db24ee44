"""Endpoints and sub-pools of a pool; invalid ones are rejected."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.support.sim_hosts import Host, pool_of, up

from batch_agent import BackendError, Endpoint, ErrorKind, SpecError, VLLMPool, parse_hostfile
from batch_agent.core.requests import Sampling
from batch_agent.pools import AgentEndpoint
from batch_agent.sim import SimConfig


def numbered(count: int) -> list[str]:
    return [f"prompt {number}" for number in range(count)]


async def test_sub_pools_number_their_agents_from_zero_and_share_connections() -> None:
    hosts = [Host() for _ in range(4)]
    async with up(*hosts):
        lines = [f"{host.address} role={'odd' if at % 2 else 'even'} gpu{at}" for at, host in enumerate(hosts)]
        whole = VLLMPool(parse_hostfile(lines))
        early = whole.by_tag("role", "odd")
        async with whole:
            last = whole.by_tag("role", "odd").slice(1, 2)
            assert (whole.size, early.size, last.size) == (4, 2, 1)
            assert [endpoint.port for endpoint in last.endpoints] == [hosts[3].port]
            assert {each.agent_index for each in await last.send_all_batched(numbered(6))} == {0}
            assert {each.agent_index for each in await early.send_all(numbered(6))} == {0, 1}
            assert (await whole.post_batch(2, ["a"]))[0].agent_index == 2
            assert (await early.post(1, "a")).endpoint.endswith(f":{hosts[3].port}")
            assert whole.by_tag("gpu2").select([0]).endpoints == [whole.endpoints[2]]
            assert whole.sample(2).size == 2
            assert whole.sample(9).size == 4
            assert [each.agent_index for each in await whole.slice(1, 3).broadcast_prompt("a")] == [0, 1]
    assert hosts[0].requests() == 0


async def test_an_empty_sub_pool_is_rejected_with_a_clear_error() -> None:
    async with pool_of(Host()) as pool:
        for empty in (pool.by_tag("nobody"), pool.select([]), pool.slice(3, 9), pool.sample(0)):
            assert empty.size == 0
            with pytest.raises(SpecError, match="no endpoints"):
                await empty.send_all_batched(["a"])
            with pytest.raises(SpecError, match="no endpoints"):
                await empty.broadcast_prompt("a")
        for number in (-1, 1):
            with pytest.raises(SpecError, match=f"agent_index must be from 0 to 0; got {number}"):
                await pool.post(number, "a")
            with pytest.raises(SpecError, match=f"agent_index must be from 0 to 0; got {number}"):
                await pool.post_batch(number, ["a"])


async def test_a_pool_opens_with_its_first_request_and_is_closed_by_close() -> None:
    host = Host()
    async with up(host):
        pool = VLLMPool([host.address], "sim")
        with pytest.raises(SpecError, match="not open"):
            pool.drain(0)
        first, second = await asyncio.gather(pool.post(0, "a"), pool.select([0]).post(0, "b"))
        assert first.success
        assert second.success
        with pytest.raises(SpecError, match="already open"):
            await pool.__aenter__()
        await pool.select([0]).close()
        await pool.close()  # twice is harmless
        async with pool:  # and again
            assert (await pool.post(0, "a")).success


async def test_max_tokens_can_be_set_by_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AURORA_SWARM_MAX_TOKENS", "100")
    pool = VLLMPool(["gpu1"])
    assert (pool.max_tokens, pool.max_tokens_aggregation) == (100, 200)
    monkeypatch.setenv("AURORA_SWARM_MAX_TOKENS_AGGREGATION", "700")
    assert VLLMPool(["gpu1"]).max_tokens_aggregation == 700
    assert VLLMPool(["gpu1"], max_tokens=5, max_tokens_aggregation=6).max_tokens_aggregation == 6
    monkeypatch.setenv("AURORA_SWARM_MAX_TOKENS", "many")
    with pytest.raises(SpecError, match="AURORA_SWARM_MAX_TOKENS must be an integer"):
        VLLMPool(["gpu1"])
    monkeypatch.setenv("AURORA_SWARM_PROXY_URL", "http://proxy:9090")
    with pytest.raises(SpecError, match="AURORA_SWARM_PROXY_URL is not supported"):
        VLLMPool(["gpu1"])


async def test_tags_given_in_auroras_format_select_endpoints() -> None:
    pool = VLLMPool([AgentEndpoint("gpu1", 8000, tags={"role": "worker"}), AgentEndpoint("gpu2", 8000)])
    assert [each.host for each in pool.by_tag("role", "worker").endpoints] == ["gpu1"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens_aggregation": -1}, "max_tokens_aggregation"),
        ({"prompts_per_endpoint": 0}, "prompts_per_endpoint"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "5"}, "timeout"),
        ({"patience": -1}, "patience"),
        ({"sampling": Sampling(extra={"n": 2})}, "n=2"),
    ],
)
def test_invalid_options_are_rejected_before_anything_is_opened(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        VLLMPool(["gpu1:8000"], **options)


@pytest.mark.parametrize("endpoints", [[], "gpu1:8000", ["ftp://gpu1"], [7]])
def test_endpoints_are_a_list_of_addresses(endpoints: Any) -> None:
    with pytest.raises(SpecError):
        VLLMPool(endpoints)


def test_endpoints_may_be_named_in_several_ways() -> None:
    pool = VLLMPool([Endpoint("gpu1", 8001), "gpu2:8002", ("gpu3", 8003), "http://gpu4:8004"])
    assert [endpoint.url for endpoint in pool.endpoints] == [f"http://gpu{n}:800{n}" for n in range(1, 5)]


def test_a_hostfile_may_be_below_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "agents.hostfile").write_text("gpu1:8001\n")
    assert parse_hostfile("~/agents.hostfile") == [Endpoint("gpu1", 8001)]


async def test_bad_max_tokens_of_a_call_are_refused_before_anything_is_sent() -> None:
    host = Host()
    async with pool_of(host) as pool:
        for work in (pool.send_all_batched(["a"], 0), pool.post(0, "a", 0), pool.send_all(["a"], -1)):
            with pytest.raises(SpecError, match="max_tokens"):
                await work
    assert host.requests() == 0


async def test_a_drained_endpoint_gets_nothing_new_until_it_is_undrained() -> None:
    hosts = Host(), Host()
    async with pool_of(*hosts) as pool:
        pool.drain(0)
        await pool.send_all_batched(numbered(30))
        assert hosts[0].requests() == 0
        pool.undrain(0)
        await pool.send_all_batched(numbered(30))
        assert hosts[0].requests() > 0


async def test_prompts_fail_after_a_while_if_all_endpoints_are_drained() -> None:
    async with pool_of(Host(), Host(), patience=0.1) as pool:
        pool.drain(0)
        pool.drain(1)
        responses = await pool.send_all_batched(["a", "b"])
    assert {response.kind for response in responses} == {ErrorKind.UNAVAILABLE}
    assert (responses[0].error or "").count("It is draining.") == 2


async def test_endpoints_with_different_models_are_rejected_by_name() -> None:
    async with up(Host(SimConfig(zero_latency=True, model="tiny")), Host()) as hosts:
        with pytest.raises(SpecError, match=r"'tiny'.*'sim'"):
            async with VLLMPool([host.address for host in hosts]):
                pass
        with pytest.raises(SpecError, match="not served"):
            async with VLLMPool([host.address for host in hosts], model="sim"):
                pass


async def test_a_pool_without_a_reachable_endpoint_cannot_be_opened() -> None:
    host, other = Host(), Host()
    async with up(host, other):
        pass
    with pytest.raises(BackendError, match="None of the 2 endpoints") as raised:
        async with VLLMPool([host.address, other.address]):
            pass
    assert raised.value.kind is ErrorKind.UNAVAILABLE
