"""Endpoints that respond, but not with answers: the others carry on, and messages say what to do."""

import asyncio
from typing import Any

import orjson
import pytest
from tests.support.event_list import EventList
from tests.support.sim_hosts import (
    BATCH,
    CHAT,
    COMPLETIONS,
    STEPS,
    Host,
    Odd,
    choice,
    event,
    poison,
    pool_of,
    refuse,
    up,
)

from batch_agent import BatchAgent, Results, RunStopped
from batch_agent.sim.http import ClientConnection

GENERATE = (CHAT, COMPLETIONS, BATCH)
METHODS = ["send_all", "send_all_batched"]
PAGE = b"<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head><body><hr>nginx</body></html>"


def rejecting(path: str, posted: Any, connection: ClientConnection) -> bool:
    return path in GENERATE and refuse(connection, 400, "unknown parameter: speed")


def empty(path: str, posted: Any, connection: ClientConnection) -> bool:
    if path not in GENERATE:
        return False
    count = 1 if path == CHAT else len(posted.get("prompt", posted.get("messages")))
    message = {"role": "assistant", "content": ""}
    choices = [{"index": at, "text": "", "message": message, "finish_reason": "stop"} for at in range(count)]
    connection.reply(200, orjson.dumps({"choices": choices}))
    return True


def page(status: int) -> Odd:
    def odd(path: str, posted: Any, connection: ClientConnection) -> bool:
        if path in GENERATE:
            connection.reply(status, PAGE, b"text/html")
        return path in GENERATE

    return odd


def dripping(path: str, posted: Any, connection: ClientConnection) -> bool:
    """A character every 100 ms, without an end."""
    if path not in GENERATE:
        return False
    loop = asyncio.get_running_loop()

    def more() -> None:
        if connection._transport is not None and not connection._transport.is_closing():
            delta = {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": None}]}
            connection.send(event(delta) if path == CHAT else choice(0, "x"))
            loop.call_later(0.1, more)

    connection.open_stream(b"")
    more()
    return True


async def run(hosts: list[Host], inputs: list[str] | None = None, **options: Any) -> Results:
    given = inputs or [f"case {number}" for number in range(30)]
    urls = [host.url for host in hosts]
    results: Results = await BatchAgent.run(
        task="{it}", inputs=given, backend=urls, progress=False, max_inflight=8, **options
    )
    return results


def mixed(odd: Odd, bad: int, good: int) -> list[Host]:
    return [*(Host(STEPS, odd=odd) for _ in range(bad)), *(Host(STEPS) for _ in range(good))]


@pytest.mark.parametrize("bad", [1, 2, 3])
@pytest.mark.parametrize("odd", [rejecting, empty, page(200), page(502)], ids=["400", "empty", "page", "502"])
async def test_one_good_endpoint_among_bad_ones_answers_every_agent(odd: Odd, bad: int) -> None:
    hosts, notices = mixed(odd, bad, 1), EventList()
    async with up(*hosts):
        results = await run(hosts, events=notices)
    assert [result.error for result in results if not result.ok] == []
    assert len(results.scheduling.unavailable) == bad
    assert len(notices.notices) == bad
    assert sum(host.requests() for host in hosts[:bad]) <= 16 * bad  # those in flight until each was found out


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", [1, 3])
@pytest.mark.parametrize("odd", [rejecting, empty, page(200), page(502)], ids=["400", "empty", "page", "502"])
async def test_one_good_endpoint_among_bad_ones_answers_every_prompt(odd: Odd, bad: int, method: str) -> None:
    hosts = mixed(odd, bad, 1)
    async with pool_of(*hosts, prompts_per_endpoint=8) as pool:
        responses = await getattr(pool, method)([f"prompt {number}" for number in range(40)])
    assert [response.error for response in responses if not response.success] == []
    assert all(response.text for response in responses)
    assert {response.endpoint for response in responses} == {f"vllm://{hosts[-1].address}"}


async def test_agents_that_all_endpoints_reject_fail_with_the_servers_message_and_what_to_do() -> None:
    hosts = mixed(rejecting, 3, 0)
    async with up(*hosts):
        results = await run(hosts)
    for result in results:
        assert result.error is not None
        assert "unknown parameter: speed" in result.error.message
        assert "`batch-agent doctor http://127.0.0.1:" in result.error.message
    assert [host.requests() for host in hosts] == [30, 30, 30]


@pytest.mark.parametrize("method", METHODS)
async def test_prompts_that_all_endpoints_reject_cost_few_requests_and_say_what_to_do(method: str) -> None:
    hosts = mixed(rejecting, 3, 0)
    async with pool_of(*hosts, prompts_per_endpoint=8, patience=0.5) as pool:
        responses = await getattr(pool, method)([f"prompt {number}" for number in range(200)])
    for response in responses:
        assert "unknown parameter: speed It rejects even the prompt 'Hi'" in (response.error or "")
        assert "batch-agent doctor vllm://127.0.0.1:" in (response.error or "")
    assert sum(host.requests() for host in hosts) <= 100


async def test_agents_whose_answers_are_empty_everywhere_fail_and_no_endpoint_is_blamed() -> None:
    hosts, notices = mixed(empty, 2, 0), EventList()
    async with up(*hosts):
        results = await run(hosts, max_retries=1, events=notices)
    assert {result.error.message for result in results if result.error} == {
        "No usable answer after 2 tries: it is empty."
    }
    assert notices.notices == []


@pytest.mark.parametrize("method", METHODS)
async def test_prompts_whose_answers_are_empty_everywhere_are_sent_once_to_each_endpoint(method: str) -> None:
    hosts = mixed(empty, 3, 0)
    async with pool_of(*hosts) as pool:
        responses = await getattr(pool, method)([f"prompt {number}" for number in range(12)])
        assert not any(member.is_down for member in pool._open.endpoint_pool.members)
    assert [(response.success, response.text) for response in responses] == [(True, "")] * 12
    if method == "send_all":
        assert sum(host.requests() for host in hosts) == 36


@pytest.mark.parametrize(("status", "endpoints"), [(200, 1), (200, 2), pytest.param(502, 2, marks=pytest.mark.slow)])
async def test_a_web_page_instead_of_answers_stops_the_run_with_its_title_and_what_to_do(
    status: int, endpoints: int
) -> None:
    hosts = mixed(page(status), endpoints, 0)
    async with up(*hosts):
        with pytest.raises(RunStopped) as raised:
            await run(hosts)
    assert hosts[0].address in str(raised.value)
    assert r"a web page (502 Bad Gateway) instead of an answer" in str(raised.value)
    assert "check the URL, and whether the server behind the proxy is up" in str(raised.value)
    assert "<" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
async def test_a_slow_drip_holds_up_no_prompt(method: str) -> None:
    hosts = mixed(dripping, 1, 2)
    async with pool_of(*hosts, timeout=3.0) as pool, asyncio.timeout(30):
        responses = await getattr(pool, method)([f"prompt {number}" for number in range(30)])
    assert [response.error for response in responses if not response.success] == []


async def test_a_slow_drip_fails_no_agent() -> None:
    hosts = mixed(dripping, 1, 2)
    async with up(*hosts):
        results = await run(hosts, timeout_per_turn=1.5)
    assert all(result.ok for result in results)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["400", "500", "502", "503", "reset", "truncated"])
async def test_one_bad_prompt_fails_alone_and_condemns_no_endpoint(fault: str) -> None:
    hosts = mixed(rejecting, 0, 4)
    inputs = [*(f"case {number}" for number in range(20)), poison(fault), *(f"case {number}" for number in range(20))]
    async with up(*hosts):
        results = await run(hosts, inputs, max_retries=1)
    assert [result.index for result in results if not result.ok] == [20]
    assert results.scheduling.unavailable == ()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("fault", ["502", "503"])
async def test_one_prompt_that_crashes_what_is_behind_a_proxy_fails_alone(fault: str, method: str) -> None:
    hosts = mixed(rejecting, 0, 4)
    async with pool_of(*hosts, prompts_per_endpoint=8, patience=2.0) as pool:
        await pool.send_all([f"prompt {number}" for number in range(12)])
        prompts = [f"prompt {number}" for number in range(40)]
        prompts[20] = poison(fault)
        responses = await getattr(pool, method)(prompts)
    assert [response.index for response in responses if not response.success] == [20]
