"""Servers without the features of vLLM get requests that they accept, and this is reported once."""

from typing import Any

import pytest
from tests.support.sim_hosts import BATCH, CHAT, COMPLETIONS, QUICK, STEPS, Host, poison, pool_of, refuse

from batch_agent import ErrorKind, VLLMPool
from batch_agent.sim import SimConfig
from batch_agent.sim.http import ClientConnection

NO_LISTS = SimConfig(zero_latency=True, list_prompts=False)
PROMPTS = [f'[[sim: {{"text": "answer {number}"}}]]' for number in range(24)]
ANSWERS = [f"answer {number}" for number in range(24)]
ONLY_VLLM = {"add_special_tokens", "stream_interval"}


async def answers(pool: VLLMPool) -> list[str]:
    return [response.text for response in await pool.send_all_batched(PROMPTS)]


def odd_status(status: int) -> Any:
    def odd(path: str, body: Any, connection: ClientConnection) -> bool:
        return path == COMPLETIONS and refuse(connection, status, "not here")

    return odd


@pytest.mark.parametrize(
    ("hosts", "why"),
    [
        ([Host(NO_LISTS), Host(NO_LISTS)], "does not accept lists"),
        ([Host(odd=odd_status(404)), Host(odd=odd_status(404))], "does not accept lists"),
        ([Host(odd=odd_status(405))], "does not accept lists"),
        ([Host(odd=odd_status(501))], "does not accept lists"),
        ([Host(SimConfig(zero_latency=True, batch_chat=False), without=["/tokenize"])], "chat template"),
        ([Host(SimConfig(zero_latency=True, batch_chat=False), without=["/detokenize"])], "chat template"),
        ([Host(without=["/tokenize", "/detokenize", "/openapi.json", COMPLETIONS, BATCH])], "chat template"),
    ],
)
async def test_a_server_without_batches_gets_single_prompts_and_this_is_reported_once(
    hosts: list[Host], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with pool_of(*hosts) as pool:
        assert await answers(pool) == ANSWERS
        before = pool.requests
        assert await answers(pool) == ANSWERS
        assert pool.requests - before == 24
    probes = sum(path == CHAT for host in hosts for path, _ in host.posts) - 48  # whether it takes anything at all
    assert probes == (len(hosts) if why == "does not accept lists" else 0)
    said = capsys.readouterr().err
    assert said.count("each prompt is sent in its own request") == 1
    assert why in said


async def test_one_server_without_batches_does_not_keep_others_from_batches() -> None:
    hosts = [Host(), Host(NO_LISTS)]
    async with pool_of(*hosts) as pool:
        for _ in range(3):
            assert await answers(pool) == ANSWERS
    assert {path for path, _ in hosts[0].posts if path.startswith("/v1")} == {COMPLETIONS}
    assert hosts[1].posts[-1][0] == CHAT


async def test_bad_prompts_are_found_when_each_is_sent_alone() -> None:
    async with pool_of(Host(NO_LISTS)) as pool:
        responses = await pool.send_all_batched([*PROMPTS, poison("400"), poison("500")])
    assert [response.text for response in responses[:24]] == ANSWERS
    assert [response.kind for response in responses[24:]] == [ErrorKind.BAD_REQUEST, ErrorKind.SERVER]


async def test_conversations_are_batched_if_the_template_is_hidden() -> None:
    hosts = [Host(without=["/detokenize"]) for _ in range(2)]
    async with pool_of(*hosts) as pool:
        assert await answers(pool) == ANSWERS
        assert pool.requests <= 4
        responses = await pool.send_all_batched([*PROMPTS, poison("400")])
        assert [response.text for response in responses[:24]] == ANSWERS
        assert not responses[24].success
        await pool.send_all_batched(["long"], max_tokens=3)
    assert {path for host in hosts for path, _ in host.posts if path.startswith("/v1")} == {BATCH}


async def test_the_next_endpoint_is_queried_if_the_first_hides_its_template() -> None:
    hosts = [Host(without=["/detokenize"]), Host()]
    async with pool_of(*hosts) as pool:
        assert await answers(pool) == ANSWERS
    assert {path for host in hosts for path, _ in host.posts if path.startswith("/v1")} == {COMPLETIONS}


def only_standard(path: str, body: Any, connection: ClientConnection) -> bool:
    """A server that refuses what it does not know."""
    if body is None or not path.startswith("/v1"):
        return False
    is_odd = ONLY_VLLM & set(body) or "continuous_usage_stats" in body.get("stream_options", {})
    return bool(is_odd) and refuse(connection, 400, "unknown field")


@pytest.mark.parametrize("use_batch", [True, False])
@pytest.mark.parametrize("raw", [True, False])
async def test_a_server_that_rejects_vllm_extensions_gets_standard_requests(raw: bool, use_batch: bool) -> None:
    host = Host(odd=only_standard)
    async with pool_of(host, raw=raw, use_batch=use_batch) as pool:
        assert await answers(pool) == ANSWERS
        assert (await pool.post(0, PROMPTS[3])).text == "answer 3"
        if use_batch:
            assert pool.requests <= 8


async def test_a_server_that_does_not_stream_is_understood() -> None:
    def odd(path: str, body: Any, connection: ClientConnection) -> bool:
        if body is not None:
            body.pop("stream", None)
        return False

    async with pool_of(Host(odd=odd)) as pool:
        assert await answers(pool) == ANSWERS


@pytest.mark.parametrize("config", [QUICK, STEPS])
async def test_a_batch_gives_the_same_answers_as_single_conversations(config: SimConfig) -> None:
    odd = [
        "plain",
        " space around ",
        "line\nbreaks\n\n",
        "ünï ✓",
        "x" * 1000,
        "{{ jinja }}",
        "\ttab",
        "[INST] other [/INST]",
    ]
    async with pool_of(Host(config)) as pool:
        alone, together = await pool.send_all(odd), await pool.send_all_batched(odd)
    assert [each.text for each in together] == [each.text for each in alone]
    assert [each.usage.input for each in together] == [each.usage.input for each in alone]
