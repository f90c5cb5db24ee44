"""Prompts reach an endpoint that answers them, if others are slow, busy, dead or restarted."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.support.sim_hosts import CHAT, COMPLETIONS, STEPS, Host, pool_of, soon, up
from tests.support.virtual_time import virtual

from batch_agent import ErrorKind, Response
from batch_agent.pools import stragglers
from batch_agent.sim import SimConfig
from batch_agent.sim.http import ClientConnection

GENERATE = (COMPLETIONS, CHAT)


def numbered(count: int) -> list[str]:
    return [f"prompt {number}" for number in range(count)]


def are_fine(responses: list[Response]) -> bool:
    return all(response.success for response in responses)


def say_nothing(path: str, body: Any, connection: ClientConnection) -> bool:
    return path in GENERATE


def steps(**more: Any) -> SimConfig:
    return SimConfig(step_base_ms=4, step_us_per_seq=0, prefill_us_per_token=0, step_ns_per_kv_token=0, **more)


async def test_a_thousand_prompts_are_a_few_requests() -> None:
    hosts = [Host() for _ in range(4)]
    async with pool_of(*hosts) as pool:
        assert are_fine(await pool.send_all_batched(numbered(1000)))
        assert 4 <= pool.requests <= 40
        assert pool.requests == sum(host.requests() for host in hosts)
    asked = [prompt for host in hosts for prompts in host.lists() for prompt in prompts]
    assert len(asked) == len(set(asked)) == 1000
    assert all(host.requests() for host in hosts)


async def test_long_prompts_make_short_lists() -> None:
    host = Host(SimConfig(zero_latency=True, max_model_len=100_000, num_blocks=100_000))
    async with pool_of(host) as pool:
        assert are_fine(await pool.send_all_batched([f"{number} " + "x" * 150_000 for number in range(6)]))
    assert max(map(len, host.lists())) <= 4


async def test_an_endpoint_has_no_more_prompts_in_flight_than_allowed() -> None:
    host = Host(STEPS)
    most = 0

    def odd(path: str, body: Any, connection: ClientConnection) -> bool:
        nonlocal most
        most = max(most, pool._open.states[0].unfinished)
        return False

    async with pool_of(host, prompts_per_endpoint=10) as pool:
        host.odd = odd
        assert are_fine(await pool.send_all_batched(numbered(50)))
    assert most <= 10


async def test_answers_of_an_endpoint_that_dies_are_kept_and_the_rest_is_sent_once_elsewhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hosts = [Host(STEPS) for _ in range(3)]
    # Some answers are long, so that the endpoint is still busy when it dies, on a slow machine too.
    prompts = [f'[[sim: {{"tokens": {4 if number % 3 else 400}}}]] {number}' for number in range(120)]
    done: list[Response] = []
    before: set[int] = set()

    def listen(response: Response) -> None:
        done.append(response)
        if not before and any(each.agent_index == 1 for each in done):
            before.update(each.index for each in done)
            hosts[1].kill()

    async with pool_of(*hosts) as pool:
        responses = await pool.send_all_batched(prompts, on_response=listen)
        assert are_fine(responses)
        assert sorted(each.index for each in done) == list(range(120))
        assert any(responses[index].agent_index == 1 for index in before)
        assert pool.requests <= 24
    asked = [prompt for host in hosts for prompts in host.lists() for prompt in prompts]
    assert not [index for index in before if sum(prompt.endswith(f" {index}<//>") for prompt in asked) > 1]
    assert capsys.readouterr().err.count("is down") == 1


async def test_an_endpoint_that_died_between_two_calls_costs_nothing() -> None:
    hosts = [Host(), Host()]
    async with pool_of(*hosts) as pool:
        await pool.send_all_batched(numbered(4))
        hosts[0].kill()
        for send in (pool.send_all_batched, pool.send_all):
            assert are_fine(await send(numbered(40)))
        assert not (await pool.post(0, "a")).success
        assert (await pool.post(1, "a")).success


async def test_an_endpoint_that_was_down_at_the_start_gets_work_when_it_is_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    there, away = Host(STEPS), Host(STEPS)
    async with up(away):
        pass
    async with pool_of(there, away) as pool, up(away):
        async with asyncio.timeout(60):
            used: set[int] = set()
            while used != {0, 1} or pool._open.endpoint_pool.members[1].is_down:
                responses = await pool.send_all_batched(numbered(40))
                assert are_fine(responses)
                used = {response.agent_index for response in responses}
    told = capsys.readouterr().err
    assert "cannot be used; its requests go to the other endpoints" in told
    assert told.count("is back") == 1


@pytest.mark.slow
@pytest.mark.parametrize("send", ["send_all", "send_all_batched"])
async def test_all_down_is_one_clear_error_for_each_after_a_while(send: str) -> None:
    hosts = Host(), Host(), Host()
    async with pool_of(*hosts, patience=0.3) as pool:
        for host in hosts:
            host.kill()
        responses = await getattr(pool, send)(numbered(30))
        (words,) = {response.error for response in responses}
        assert {response.kind for response in responses} == {ErrorKind.UNAVAILABLE}
        assert words.startswith("None of 3 endpoints answered the request.")
        assert all(host.address in words for host in hosts)
        (words,) = {each.error for each in await getattr(pool.select([1]), send)(numbered(3))}
        assert words.startswith("The endpoint did not answer the request.")
        assert hosts[0].address not in words


async def test_all_down_for_a_moment_costs_no_prompt() -> None:
    hosts = Host(), Host()
    async with pool_of(*hosts) as pool:
        for host in hosts:
            host.kill()
        async with asyncio.TaskGroup() as group:
            call = group.create_task(pool.send_all_batched(numbered(30)))
            await soon(lambda: all(member.is_down for member in pool._open.endpoint_pool.members))
            await hosts[1].start()
        hosts[1].kill()
        assert are_fine(call.result())


@pytest.mark.slow
@pytest.mark.parametrize("use_batch", [True, False])
async def test_batches_of_a_silent_endpoint_are_done_by_the_others(
    use_batch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stragglers, "_MIN_UNSTREAMED_SECONDS", 1.0)
    hosts = [Host(odd=say_nothing), Host()]
    async with pool_of(*hosts, use_batch=use_batch) as pool:
        responses = await pool.send_all_batched(numbered(30))
        assert are_fine(responses)
        assert {response.agent_index for response in responses} == {1}


@pytest.mark.parametrize("use_batch", [True, False])
async def test_a_silent_endpoint_is_waited_for_no_longer_than_the_timeout(use_batch: bool) -> None:
    host = Host(odd=say_nothing)
    async with pool_of(host, use_batch=use_batch) as pool:
        pool.timeout = 0.1  # only now: a slow machine may need longer to open it
        responses = await pool.send_all_batched(numbered(5))
        alone = await pool.post(0, "a")
    for response in [*responses, alone]:
        assert response.kind is ErrorKind.TURN_TIMEOUT
        assert "0.1 s" in (response.error or "")
    assert host.requests() <= (2 if use_batch else 6)  # on a slow machine one may not have arrived in its time


async def test_an_endpoint_that_ignores_the_probe_does_not_keep_a_pool_from_opening() -> None:
    there, mute = Host(), Host(odd=lambda path, body, connection: True)
    async with pool_of(mute, there, timeout=1.0) as pool:
        responses = await pool.send_all_batched(numbered(9))
    assert are_fine(responses)
    assert {response.agent_index for response in responses} == {1}


async def test_a_batch_that_stalls_everywhere_is_sent_again() -> None:
    async with pool_of(Host(), Host()) as pool:
        await pool.send_all_batched(numbered(4))
        pool.timeout = 0.5
        assert are_fine(await pool.send_all_batched([*numbered(20), '[[sim: {"fault": "stall", "times": 1}]]']))


@pytest.mark.slow
async def test_a_slow_endpoint_does_less_and_its_batches_are_reclaimed() -> None:
    hosts = [Host(steps()), Host(steps()), Host(steps(slowdown=8.0))]
    async with pool_of(*hosts, max_tokens=200) as pool:
        prompts = [f'[[sim: {{"tokens": 150}}]] {number}' for number in range(120)]
        responses = await pool.send_all_batched(prompts)
        assert are_fine(responses)
        shares = [sum(response.agent_index == endpoint for response in responses) for endpoint in range(3)]
        assert shares[2] < min(shares[:2])
        assert pool.requests > 12


@virtual  # how even the two are is not left to the machine
async def test_equal_endpoints_take_nothing_from_each_other() -> None:
    async with pool_of(Host(steps()), Host(steps()), max_tokens=200) as pool:
        prompts = [f'[[sim: {{"tokens": 150}}]] {number}' for number in range(80)]
        assert are_fine(await pool.send_all_batched(prompts))
        assert pool.requests == 8


@virtual
@pytest.mark.parametrize(
    "slowdown", [4.0, *(pytest.param(slowdown, marks=pytest.mark.slow) for slowdown in (2.0, 20.0))]
)
async def test_a_slow_endpoint_among_fast_ones_hardly_costs_time(slowdown: float) -> None:
    async def seconds(*slowdowns: float) -> float:
        hosts = [Host(replace(STEPS, step_base_ms=20, max_num_seqs=32, slowdown=each)) for each in slowdowns]
        async with pool_of(*hosts, prompts_per_endpoint=64) as pool:
            prompts = [f'[[sim: {{"tokens": {20 + number * 7 % 180}}}]] {number}' for number in range(400)]
            started = asyncio.get_running_loop().time()
            assert are_fine(await pool.send_all_batched(prompts))
            return asyncio.get_running_loop().time() - started

    assert await seconds(1.0, 1.0, slowdown) <= 1.03 * await seconds(1.0, 1.0)


async def test_calls_to_different_endpoints_take_nothing_from_each_other() -> None:
    hosts = [Host(steps(slowdown=6.0)), Host(steps())]
    async with pool_of(*hosts) as pool, asyncio.TaskGroup() as group:
        prompts = [f'[[sim: {{"tokens": 30}}]] {number}' for number in range(20)]
        calls = [group.create_task(pool.post_batch(endpoint, prompts)) for endpoint in (0, 1)]
        for endpoint, call in enumerate(calls):
            assert {response.agent_index for response in await call} == {endpoint}
        assert pool.requests == 4


async def test_an_endpoint_that_comes_and_goes_costs_no_prompt() -> None:
    hosts = [Host(STEPS), Host(STEPS)]

    async def flap() -> None:
        while True:
            await asyncio.sleep(0.15)
            hosts[1].kill()
            await hosts[1].start()

    async with pool_of(*hosts) as pool, asyncio.TaskGroup() as group:
        flapping = group.create_task(flap())
        prompts = [f'[[sim: {{"tokens": 40}}]] {number}' for number in range(40)]
        for _ in range(6):
            assert are_fine(await pool.send_all_batched(prompts))
        flapping.cancel()


async def test_a_single_prompt_probes_an_endpoint_that_was_down() -> None:
    hosts = [Host(STEPS), Host(STEPS)]
    async with pool_of(*hosts) as pool:
        hosts[1].kill()
        while not pool._open.endpoint_pool.members[1].is_down:
            assert are_fine(await pool.send_all_batched(numbered(20)))
        await soon(lambda: 1 in pool._open.endpoint_pool.routing.available(asyncio.get_running_loop().time()))
        await hosts[1].start()
        hosts[1].posts.clear()
        assert are_fine(await pool.send_all_batched(numbered(40)))
        hosts[1].kill()
    assert len(hosts[1].lists()[0]) == 1
