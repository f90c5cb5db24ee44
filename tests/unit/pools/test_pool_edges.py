"""Every argument of Endpoint and VLLMPool at its edges: it works, or is refused by its name before anything is sent."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.api.test_option_edges import EDGES, naming

from batch_agent import Endpoint, SpecError, VLLMPool
from batch_agent.sim import Script, SimConfig, SimServer

# The edges at which an argument works. At all others it is refused.
ENDPOINT: dict[str, str] = {
    "host": "letters",
    "port": "one",
    "tags": "list dict",
    "fields": "dict",
    "scheme": "",
    "base": "empty",
}
POOL: dict[str, str] = {
    "endpoints": "",
    "model": "none",  # the server has no other
    "max_tokens": "one most none",
    "max_tokens_aggregation": "one most none",
    "use_batch": "true",
    "timeout": "one longest",
    "raw": "true",
    "prompts_per_endpoint": "one most",
    "patience": "zero one longest tiny",
    "sampling": "none",
    "log_requests": "none unicode",
}
NOTHING_ANSWERS_IN_TIME = ("timeout", "tiny")
MORE = {**EDGES, "letters": "ü漢"}


def works(table: dict[str, str], argument: str, edge: str) -> bool:
    return edge in table[argument].split()


def test_every_argument_has_a_row() -> None:
    assert sorted(ENDPOINT) == sorted(inspect.signature(Endpoint).parameters)
    assert sorted(POOL) == sorted(inspect.signature(VLLMPool).parameters)


@pytest.mark.parametrize("argument", ENDPOINT)
def test_an_endpoint_accepts_an_edge_value_or_rejects_it_by_name(argument: str) -> None:
    for edge in MORE:
        with naming(edge):
            check_endpoint(argument, edge)


def check_endpoint(argument: str, edge: str) -> None:
    given: dict[str, Any] = {"host": "gpu1", argument: MORE[edge]}
    if works(ENDPOINT, argument, edge):
        assert Endpoint(**given).url.startswith("http://")
    else:
        with pytest.raises(SpecError, match=rf"^{argument}\b"):
            Endpoint(**given)


@pytest.fixture(scope="module")
def server() -> Iterator[SimServer]:
    with SimServer(SimConfig(zero_latency=True), Script(answer_tokens=2)) as started:
        yield started


@pytest.mark.parametrize("argument", POOL)
async def test_a_pool_accepts_an_edge_value_or_rejects_it_by_name(
    server: SimServer, argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for edge in EDGES:
        if (argument, edge) != NOTHING_ANSWERS_IN_TIME:
            with naming(edge):
                await check_pool(server, argument, edge)


async def check_pool(server: SimServer, argument: str, edge: str) -> None:
    given: dict[str, Any] = {"endpoints": [server.url], argument: EDGES[edge]}
    if works(POOL, argument, edge):
        async with VLLMPool(**given) as pool:
            assert len(await pool.send_all_batched(["a", "b"])) == 2
    elif argument == "model" and isinstance(EDGES[edge], str) and edge != "half":
        with pytest.raises(SpecError, match=r"^model=.* is not served"):
            async with VLLMPool(**given):
                pass
    else:
        with pytest.raises(SpecError, match=rf"^{argument}\b"):
            VLLMPool(**given)


async def test_an_index_outside_the_pool_is_rejected(server: SimServer) -> None:
    async with VLLMPool([server.url]) as pool:
        assert (await pool.post(0, "a")).success
        for edge in EDGES.keys() - {"zero"}:
            with naming(edge):
                for choose in (pool.drain, pool.undrain, lambda at: pool.select([at])):
                    with pytest.raises(SpecError, match="agent_index must be from 0"):
                        choose(EDGES[edge])
                with pytest.raises(SpecError, match="agent_index must be from 0"):
                    await pool.post(EDGES[edge], "a")


@pytest.mark.parametrize("prompts", [[], ["one"]])
async def test_a_pool_answers_no_prompt_and_one(server: SimServer, prompts: list[str]) -> None:
    async with VLLMPool([server.url, server.url.replace("127.0.0.1", "localhost")]) as pool:
        for send in (pool.send_all, pool.send_all_batched):
            assert [each.success for each in await send(prompts)] == [True] * len(prompts)
        assert len(await pool.post_batch(1, prompts)) == len(prompts)
        assert [each.success async for each in pool.stream(prompts)] == [True] * len(prompts)


@pytest.mark.parametrize("text", ["ü漢🙂", "\u202eright to left", "a\0b", "\ud800", "🙂" * 1_000])
async def test_a_pool_sends_every_text_that_can_be_sent(server: SimServer, text: str) -> None:
    async with VLLMPool([server.url]) as pool:
        [batched] = await pool.send_all_batched([text])
        assert batched.success
        assert (await pool.post(0, text)).success
