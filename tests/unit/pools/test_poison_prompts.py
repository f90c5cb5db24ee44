"""A prompt that no server bears costs the others nothing, and few requests to find."""

import asyncio
from math import ceil, log2
from typing import Any

import pytest
from tests.support.sim_hosts import BATCH, COMPLETIONS, STEPS, Host, choice, event, poison, pool_of, refuse

from batch_agent import ErrorKind, Response, VLLMPool
from batch_agent.sim import SimConfig
from batch_agent.sim.http import ClientConnection


def numbered(count: int) -> list[str]:
    return [f"prompt {number}" for number in range(count)]


def failed(responses: list[Response]) -> list[int]:
    return [response.index for response in responses if not response.success]


def are_all_in(pool: VLLMPool) -> bool:
    return not any(member.is_down for member in pool._open.endpoint_pool.members)


@pytest.mark.parametrize("at", [0, 1, 7, 9, 15])
async def test_a_refused_prompt_costs_no_more_than_a_bisection(at: int) -> None:
    host = Host()
    async with pool_of(host) as pool:
        await pool.send_all_batched(numbered(15))
        prompts = numbered(16)
        prompts[at] = poison("400")
        before = pool.requests
        responses = await pool.send_all_batched(prompts)
        assert pool.requests - before <= 2 + log2(16) + 2
        assert are_all_in(pool)
    assert failed(responses) == [at]
    assert responses[at].kind is ErrorKind.BAD_REQUEST
    assert responses[at].endpoint
    assert responses[at].agent_index == 0
    told = [prompt for prompts in host.lists()[2:] for prompt in prompts]
    assert not [prompt for prompt in told if told.count(prompt) > 2 + log2(16)]


@pytest.mark.parametrize("fault", ["400", "500", "reset", "truncated", "garbage"])
@pytest.mark.parametrize("count", [1, 2])
async def test_a_bad_prompt_of_any_kind_leaves_the_others_answered(fault: str, count: int) -> None:
    async with pool_of(*(Host() for _ in range(count))) as pool:
        await pool.send_all_batched(["a"])
        prompts = numbered(60)
        prompts[23] = poison(fault)
        lists = 2 + 4 * count
        responses = await pool.send_all_batched(prompts)
        assert failed(responses) == [23]
        assert pool.requests <= lists + 2 * ceil(log2(60)) + 4
        assert are_all_in(pool)


async def test_a_prompt_that_is_too_long_is_found_among_others() -> None:
    async with pool_of(Host(SimConfig(zero_latency=True, max_model_len=256)), max_tokens=16) as pool:
        responses = await pool.send_all_batched([*numbered(20), "long " * 500, *numbered(20)])
    assert failed(responses) == [20]
    assert responses[20].kind is ErrorKind.CONTEXT_OVERFLOW


@pytest.mark.parametrize("fault", ["400", "500"])
async def test_several_bad_prompts_in_one_batch_are_all_found(fault: str) -> None:
    bad = [0, 3, 4, 11, 12, 19]
    prompts = numbered(20)
    for at in bad:
        prompts[at] = poison(fault, str(at))
    async with pool_of(Host(), Host()) as pool:
        assert failed(await pool.send_all_batched(prompts)) == bad


@pytest.mark.parametrize("fault", ["400", "500"])
async def test_each_of_many_bad_prompts_gets_its_error(fault: str) -> None:
    async with pool_of(Host(), patience=0.1) as pool:
        responses = await pool.send_all_batched([poison(fault, str(at)) for at in range(9)])
    assert failed(responses) == list(range(9))
    assert all(f"status {fault}" in (response.error or "") for response in responses)


async def test_bad_prompts_that_are_sent_alone_fail_at_once() -> None:
    async with pool_of(Host(), Host(), use_batch=False) as pool:
        responses = await pool.send_all_batched([*numbered(10), poison("400"), *numbered(10)])
        assert pool.requests == 22  # one endpoint may be wrong about it, two are not
    assert failed(responses) == [10]
    assert responses[10].agent_index in (0, 1)


async def test_a_server_that_rejects_only_large_batches_answers_all_prompts() -> None:
    def odd(path: str, body: Any, connection: ClientConnection) -> bool:
        return path == COMPLETIONS and len(body["prompt"]) > 5 and refuse(connection, 413, "too large")

    async with pool_of(Host(odd=odd)) as pool:
        assert failed(await pool.send_all_batched(numbered(40))) == []


async def test_a_rejection_in_mid_stream_is_not_attributed_to_another_prompt() -> None:
    def odd(path: str, body: Any, connection: ClientConnection) -> bool:
        if path != COMPLETIONS or not any("bad" in prompt for prompt in body["prompt"]):
            return False
        connection.open_stream(choice(0, "x"))
        error = event({"error": {"message": "bad", "code": 400}})
        asyncio.get_running_loop().call_later(0.01, connection.end_stream, error + event(b"[DONE]"))
        return True

    async with pool_of(Host(odd=odd)) as pool:
        responses = await pool.send_all_batched([*numbered(7), "bad", *numbered(22)])
    assert failed(responses) == [7]


async def test_an_answer_that_the_server_aborts_is_requested_again() -> None:
    given_up: list[Any] = []

    def odd(path: str, body: Any, connection: ClientConnection) -> bool:
        if path != BATCH or given_up:
            return False
        given_up.append(body)
        reasons = ["stop", "abort", "stop"]
        choices = [{"index": at, "message": {"content": "x"}, "finish_reason": why} for at, why in enumerate(reasons)]
        connection.reply(200, event({"choices": choices}).removeprefix(b"data: "))
        return True

    host = Host(without=["/detokenize"], odd=odd)
    async with pool_of(host) as pool:
        responses = await pool.send_all_batched(numbered(3))
    assert failed(responses) == []
    assert [len(each) for each in host.lists(BATCH)] == [3, 1]
    assert [response.text == "x" for response in responses] == [True, False, True]


async def test_answers_before_a_broken_connection_are_not_requested_again() -> None:
    quick = [f'[[sim: {{"tokens": 4}}]] {number}' for number in range(6)]
    bad = poison("reset", tokens=90, times=1)
    host = Host(STEPS)
    async with pool_of(host) as pool:
        assert failed(await pool.send_all_batched([*quick, bad])) == []
    first, second = host.lists()
    assert (len(first), len(second)) == (7, 1)


async def test_a_prompt_that_fails_only_at_first_is_answered() -> None:
    async with pool_of(Host()) as pool:
        assert failed(await pool.send_all_batched([*numbered(9), poison("500", times=2)])) == []
