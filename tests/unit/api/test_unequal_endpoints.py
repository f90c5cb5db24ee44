"""Two endpoints, one of which does not do what the other does: all agents and all prompts are answered."""

import asyncio
from typing import Any

import pytest
from tests.support.event_list import EventList
from tests.support.sim_hosts import BATCH, CHAT, COMPLETIONS, STEPS, Host, Odd, poison, pool_of, refuse, up

from batch_agent import BatchAgent, Results, Tool
from batch_agent.observe.live.state import LiveState
from batch_agent.observe.text.summary import summary_lines
from batch_agent.sim import SimConfig
from batch_agent.sim.http import ClientConnection

GENERATE = (CHAT, COMPLETIONS, BATCH)


async def run(*hosts: Host, count: int = 60, **options: Any) -> Results:
    inputs = [f"case {number}" for number in range(count)]
    urls = [host.url for host in hosts]
    results: Results = await BatchAgent.run(task="Look at {it}", inputs=inputs, backend=urls, progress=False, **options)
    return results


def saying(status: int, body: bytes, kind: bytes = b"application/json", extra: bytes = b"") -> Odd:
    def odd(path: str, posted: Any, connection: ClientConnection) -> bool:
        if path in GENERATE:
            connection.reply(status, body, kind, extra=extra)
        return path in GENERATE

    return odd


def refusing(status: int, words: str) -> Odd:
    def odd(path: str, posted: Any, connection: ClientConnection) -> bool:
        return path in GENERATE and refuse(connection, status, words)

    return odd


def hanging(path: str, posted: Any, connection: ClientConnection) -> bool:
    return path in GENERATE


def resetting(path: str, posted: Any, connection: ClientConnection) -> bool:
    if path in GENERATE:
        connection.reset()
    return path in GENERATE


BAD = {
    "no chat template": refusing(400, "This model's tokenizer has no chat template"),
    "wrong key": refusing(401, "no such key"),
    "not allowed": refusing(403, "not yours"),
    "wrong model": refusing(404, "The model does not exist"),
    "unknown field": refusing(422, "extra fields not permitted"),
    "fails": refusing(500, "CUDA error"),
    "broken JSON": saying(200, b'{"choices": [{"mess'),
    "empty": saying(200, b""),
    "another protocol": saying(200, b"<html>Welcome to nginx!</html>", b"text/html"),
    "redirects": saying(307, b"", extra=b"location: http://127.0.0.1:1/\r\n"),
    "resets": resetting,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", BAD)
async def test_an_endpoint_with_fewer_features_than_another_fails_no_agent(kind: str) -> None:
    bad, good, notices = Host(STEPS, odd=BAD[kind]), Host(STEPS), EventList()
    async with up(bad, good):
        results = await run(good, bad, max_inflight=8, events=notices)
    assert [result.error for result in results if not result.ok] == []
    assert bad.requests() <= 16  # those in flight when it was found out
    assert len([words for words in notices.notices if words.startswith(bad.url)]) == 1


async def test_an_endpoint_that_was_taken_out_is_in_the_summary_and_in_the_results() -> None:
    bad, good, state = Host(STEPS, odd=BAD["no chat template"]), Host(STEPS), LiveState()
    async with up(bad, good):
        results = await run(good, bad, events=state)
    [said] = results.scheduling.unavailable
    assert said.startswith(f"{bad.url}: ")
    assert "no chat template" in said
    assert f"Unavailable endpoint: {said}" in summary_lines(state, 1.0)


async def test_an_endpoint_that_refuses_all_does_not_keep_the_others_from_calling_tools() -> None:
    @Tool.define(effect="read")
    def look(it: str = "") -> str:
        """Looks it up."""
        return "seen"

    bad, good, log = Host(STEPS, odd=BAD["no chat template"]), Host(STEPS), EventList()
    async with up(bad, good):
        results = await run(good, bad, count=8, tools=[look], events=log)
    assert [result.error for result in results if not result.ok] == []
    assert any("no chat template" in text for text in log.notices)
    sent = [body for path, body in good.posts if path == CHAT]
    assert all("tools" in body for body in sent), "the others were asked without tool calls"


async def test_two_agents_are_enough_to_detect_a_deficient_endpoint() -> None:
    bad, good = Host(STEPS, odd=BAD["broken JSON"]), Host(STEPS)
    async with up(bad, good):
        assert all(result.ok for result in await run(good, bad, count=2))


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 40])
async def test_a_hanging_endpoint_fails_no_agent(count: int) -> None:
    bad, good = Host(STEPS, odd=hanging), Host(STEPS)
    async with up(bad, good):
        results = await run(good, bad, count=count, max_inflight=8, timeout_per_turn=1.5)
    assert [result.error for result in results if not result.ok] == []
    assert bad.requests() <= 12


async def test_a_slow_endpoint_gets_fewer_requests_and_fails_no_agent() -> None:
    slow, good = Host(SimConfig(step_base_ms=40)), Host(STEPS)
    async with up(slow, good):
        results = await run(good, slow, max_inflight=8)
    assert all(result.ok for result in results)
    assert slow.requests() < good.requests()


async def test_an_endpoint_that_fails_intermittently_fails_no_agent() -> None:
    asked = 0

    def flapping(path: str, posted: Any, connection: ClientConnection) -> bool:
        nonlocal asked
        asked += path in GENERATE
        return path in GENERATE and asked // 5 % 2 == 0 and refuse(connection, 400, "not yet")

    bad, good = Host(STEPS, odd=flapping), Host(STEPS)
    async with up(bad, good):
        assert all(result.ok for result in await run(good, bad, max_inflight=8))


async def test_an_invalid_request_fails_its_agent_and_ejects_no_endpoint() -> None:
    hosts, notices = (Host(STEPS), Host(STEPS)), EventList()
    async with up(*hosts):
        results = await BatchAgent.run(
            task="{it}",
            inputs=[poison("400"), *(f"case {number}" for number in range(20)), poison("400")],
            backend=[host.url for host in hosts],
            progress=False,
            events=notices,
        )
    assert [result.index for result in results if not result.ok] == [0, 21]
    assert notices.notices == []
    assert sum(host.requests() for host in hosts) == 24


async def test_when_all_endpoints_refuse_every_agent_fails_with_the_servers_message() -> None:
    bad = refusing(400, "no chat template")
    hosts = Host(odd=bad), Host(odd=bad)
    async with up(*hosts):
        results = await run(*hosts, count=5)
    assert all(result.error is not None and "no chat template" in result.error.message for result in results)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["send_all", "send_all_batched"])
@pytest.mark.parametrize("kind", BAD)
async def test_an_endpoint_with_fewer_features_than_another_fails_no_prompt(kind: str, method: str) -> None:
    bad, good = Host(STEPS, odd=BAD[kind]), Host(STEPS)
    async with pool_of(good, bad, prompts_per_endpoint=8) as pool:
        responses = await getattr(pool, method)([f"prompt {number}" for number in range(60)])
    assert [response.error for response in responses if not response.success] == []
    assert bad.requests() <= 40  # a few lists of at most 8, halved until it is known whose fault it is


@pytest.mark.slow
@pytest.mark.parametrize("method", ["send_all", "send_all_batched"])
async def test_a_hanging_endpoint_fails_no_prompt(method: str) -> None:
    bad, good = Host(STEPS, odd=hanging), Host(STEPS)
    async with pool_of(good, bad, prompts_per_endpoint=8, timeout=2.0) as pool:
        responses = await getattr(pool, method)([f"prompt {number}" for number in range(60)])
    assert [response.error for response in responses if not response.success] == []


@pytest.mark.slow
@pytest.mark.parametrize("method", ["send_all", "send_all_batched"])
@pytest.mark.parametrize("retry_after", [b"", b"retry-after: 0\r\n", b"retry-after: 1\r\n"])
async def test_an_endpoint_that_refuses_a_fifth_of_requests_is_not_ejected(method: str, retry_after: bytes) -> None:
    asked = 0

    def every_fifth(path: str, posted: Any, connection: ClientConnection) -> bool:
        nonlocal asked
        asked += path in GENERATE
        return path in GENERATE and asked % 5 == 0 and refuse(connection, 429, "busy", retry_after)

    async with pool_of(Host(STEPS, odd=every_fifth)) as pool:
        async with asyncio.timeout(30):
            responses = await getattr(pool, method)([f"prompt {number}" for number in range(200)])
        assert all(response.success for response in responses)
        assert pool._open.states[0].paused_until < 0  # only the refused prompts waited
