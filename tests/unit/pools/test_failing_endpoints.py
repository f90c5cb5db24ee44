"""Endpoints that are overloaded or always fail cost no prompt while another one works."""

import asyncio
from typing import Any

import pytest
from tests.support.sim_hosts import CHAT, COMPLETIONS, Host, pool_of, refuse

from batch_agent import ErrorKind, Response
from batch_agent.sim import SimConfig
from batch_agent.sim.http import ClientConnection

GENERATE = (COMPLETIONS, CHAT)
SLOW = SimConfig(step_base_ms=4, step_us_per_seq=0, prefill_us_per_token=0, step_ns_per_kv_token=0)


def numbered(count: int) -> list[str]:
    return [f"prompt {number}" for number in range(count)]


def are_fine(responses: list[Response]) -> bool:
    return all(response.success for response in responses)


@pytest.mark.parametrize("count", [1, 2])
async def test_retry_after_of_an_overloaded_endpoint_is_honored(count: int) -> None:
    refused: list[float] = []

    def odd(path: str, body: Any, connection: ClientConnection) -> bool:
        if path in GENERATE:
            refused.append(asyncio.get_running_loop().time())
        return path in GENERATE and len(refused) <= 4 and refuse(connection, 429, "busy", b"retry-after: 0.4\r\n")

    hosts = [Host(odd=odd), Host()][:count]
    async with pool_of(*hosts) as pool:
        responses = await pool.send_all_batched(numbered(40))
        assert are_fine(responses)
        assert not pool._open.endpoint_pool.members[0].is_down
    if count == 1:
        assert refused[4] - refused[0] >= 0.4  # requests in flight at the first refusal are refused after it


@pytest.mark.slow
async def test_batches_that_wait_after_a_refusal_are_not_reclaimed() -> None:
    """One that was refused for want of time, while another endpoint would be quicker with it."""

    def odd(path: str, body: Any, connection: ClientConnection) -> bool:
        return path in GENERATE and refuse(connection, 429, "busy", b"retry-after: 2\r\n")

    async with pool_of(Host(odd=odd), Host(SLOW), max_tokens=200) as pool:
        assert are_fine(await pool.send_all_batched([f'[[sim: {{"tokens": 150}}]] {n}' for n in range(40)]))


async def test_prompts_of_an_endpoint_that_always_refuses_fail_in_the_end() -> None:
    def odd(path: str, body: Any, connection: ClientConnection) -> bool:
        return path in GENERATE and refuse(connection, 429, "busy", b"retry-after: 0\r\n")

    async with pool_of(Host(odd=odd)) as pool:
        responses = await pool.send_all_batched(numbered(3))
    assert {response.kind for response in responses} == {ErrorKind.RATE_LIMITED}


async def test_an_endpoint_is_used_again_after_an_overload() -> None:
    refusals = 0

    def odd(path: str, body: Any, connection: ClientConnection) -> bool:
        nonlocal refusals
        refusals += path in GENERATE
        return path in GENERATE and refusals <= 3 and refuse(connection, 503, "overloaded")

    async with pool_of(Host(odd=odd)) as pool:
        assert are_fine(await pool.send_all_batched(numbered(40)))


@pytest.mark.parametrize("status", [401, 404, 500, 502, 503])
async def test_an_endpoint_that_always_fails_costs_no_prompt_and_few_requests(status: int) -> None:
    def odd(path: str, body: Any, connection: ClientConnection) -> bool:
        return path in GENERATE and refuse(connection, status)

    sick = Host(odd=odd)
    async with pool_of(sick, Host(), Host()) as pool:
        assert are_fine(await pool.send_all_batched(numbered(300)))
        assert are_fine(await pool.send_all(numbered(50)))
    assert sick.requests() <= 140  # a list that was refused may have gone one by one


async def test_a_pool_whose_endpoints_always_fail_returns_errors() -> None:
    def odd(path: str, body: Any, connection: ClientConnection) -> bool:
        return path in GENERATE and refuse(connection, 500)

    hosts = Host(odd=odd), Host(odd=odd)
    async with pool_of(*hosts, patience=0.3) as pool:
        responses = await pool.send_all_batched(numbered(300))
    assert not any(response.success for response in responses)
    assert sum(host.requests() for host in hosts) <= 300
