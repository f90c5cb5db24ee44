"""A pool: one response for each prompt, in order, whatever the prompts are and however many endpoints there are."""

import asyncio
from typing import Any

import pytest
from tests.support.sim_hosts import CHAT, COMPLETIONS, STEPS, Host, pool_of, soon

from batch_agent import ErrorKind, Response, SpecError
from batch_agent.core.requests import Sampling
from batch_agent.sim import Script, SimConfig


def numbered(count: int) -> list[str]:
    return [f"prompt {number}" for number in range(count)]


def saying(text: str) -> str:
    return f'[[sim: {{"text": "{text}"}}]]'


async def test_responses_are_in_the_order_of_the_prompts() -> None:
    async with pool_of(Host(), Host(), Host()) as pool:
        responses = await pool.send_all_batched([saying(f"answer {number}") for number in range(100)])
    assert [response.index for response in responses] == list(range(100))
    assert [response.text for response in responses] == [f"answer {number}" for number in range(100)]


@pytest.mark.parametrize("send", ["send_all", "send_all_batched"])
async def test_a_response_has_usage_finish_and_endpoint(send: str) -> None:
    async with pool_of(Host(), Host()) as pool:
        responses: list[Response] = await getattr(pool, send)(numbered(8))
        urls = [member.url for member in pool._open.endpoint_pool.members]
    assert {response.agent_index for response in responses} == {0, 1}
    for response in responses:
        assert response.success
        assert response.text
        assert (response.error, response.kind, response.finish) == (None, None, "stop")
        assert response.usage.output == 8
        assert response.usage.input > 0
        assert response.endpoint == urls[response.agent_index]


@pytest.mark.parametrize("how", ["post", "post_batch", "send_all", "send_all_batched"])
async def test_an_answer_that_was_cut_off_is_not_a_success_and_has_its_text(how: str) -> None:
    async with pool_of(Host(script=Script(answer_tokens=64))) as pool:
        given: Any = {"post": (0, "long"), "post_batch": (0, ["long"])}.get(how, (["long"],))
        found = await getattr(pool, how)(*given, max_tokens=5)
    (response,) = found if isinstance(found, list) else [found]
    assert not response.success
    assert (response.kind, response.finish) == (ErrorKind.TRUNCATED, "length")
    assert response.text
    assert response.usage.output == 5


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
async def test_any_number_of_prompts_has_as_many_responses(count: int) -> None:
    async with pool_of(Host(), Host(), Host()) as pool:
        for send in (pool.send_all, pool.send_all_batched):
            assert [response.success for response in await send(numbered(count))] == [True] * count


@pytest.mark.parametrize("odd", ["", None, 7, b"bytes", ["a"]])
async def test_an_invalid_prompt_gets_an_error_and_does_not_affect_the_others(odd: Any) -> None:
    host = Host()
    async with pool_of(host) as pool:
        first, second, third = await pool.send_all_batched(["a", odd, "b"])
        alone = await pool.post(0, odd)
    assert first.success
    assert third.success
    for response in (second, alone):
        assert (response.success, response.kind, response.agent_index) == (False, ErrorKind.BAD_INPUT, -1)
        assert repr(odd) in (response.error or "")
    assert host.requests() == 1


async def test_any_text_is_a_prompt() -> None:
    odd = [
        "ünï ✓ 漢字 😀",
        "\ud83d half a pair",
        " ",
        "\n",
        "\x00",
        "{braces} %s",
        "<|user|>marks<//><|assistant|>",
        "x" * 9000,
    ]
    async with pool_of(Host(), Host()) as pool:
        for send in (pool.send_all, pool.send_all_batched):
            assert all(response.success for response in await send(odd))


async def test_equal_prompts_are_each_sent() -> None:
    host = Host()
    async with pool_of(host) as pool:
        responses = await pool.send_all_batched(["same"] * 20)
    assert len({response.text for response in responses}) == 1
    assert sum(map(len, host.lists())) == 20


async def test_prompts_may_be_any_iterable_but_not_a_string() -> None:
    async with pool_of(Host()) as pool:
        assert len(await pool.send_all_batched(prompt for prompt in "ab")) == 2  # type: ignore[arg-type]
        for send in (pool.send_all, pool.send_all_batched):
            with pytest.raises(SpecError, match="single string"):
                await send("hello")


async def test_max_tokens_of_a_call_overrides_that_of_the_pool() -> None:
    host = Host()
    async with pool_of(host, max_tokens=33) as pool:
        await pool.send_all_batched(["a"])
        await pool.send_all_batched(["a"], max_tokens=7)
        await pool.post(0, "a", max_tokens=9)
        assert pool.max_tokens_aggregation == 66
    said = [body["max_tokens"] for path, body in host.posts if path in (COMPLETIONS, CHAT)]
    assert said == [33, 7, 9]


async def test_max_tokens_never_exceeds_the_context_window() -> None:
    host = Host(SimConfig(zero_latency=True, max_model_len=64))
    async with pool_of(host, max_tokens=5000) as pool:
        await pool.send_all_batched(["a"])
    assert host.posts[-1][1]["max_tokens"] == 64


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_sampling_goes_with_every_request(path: str) -> None:
    host = Host()
    sampling = Sampling(temperature=0.5, top_p=0.9, seed=3, stop=("END",), extra={"min_p": 0.1})
    async with pool_of(host, sampling=sampling, use_batch=path == COMPLETIONS) as pool:
        await pool.send_all_batched(["a", "b"])
    (body, *_) = [body for posted, body in host.posts if posted == path]
    assert {name: body[name] for name in ("temperature", "top_p", "seed", "min_p")} == {
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 3,
        "min_p": 0.1,
    }
    assert body["stop"] == ["END"]


async def test_without_batches_each_prompt_has_its_own_request() -> None:
    host = Host()
    async with pool_of(host, use_batch=False) as pool:
        responses = await pool.send_all_batched(numbered(20))
        await pool.post_batch(0, numbered(3))
        assert pool.requests == 23
    assert all(response.success for response in responses)
    assert [path for path, _ in host.posts if path.startswith("/v1")] == [CHAT] * 23


@pytest.mark.parametrize("use_batch", [True, False])
async def test_raw_prompts_are_sent_as_they_are(use_batch: bool) -> None:
    host = Host()
    async with pool_of(host, raw=True, use_batch=use_batch) as pool:
        responses = await pool.send_all_batched(["Once upon", "a time"])
        await pool.post(0, "Alone")
    assert all(response.success for response in responses)
    assert sorted(prompt for prompts in host.lists() for prompt in prompts) == ["Alone", "Once upon", "a time"]
    assert all(body["add_special_tokens"] for path, body in host.posts if path == COMPLETIONS)


async def test_on_response_is_called_at_once_and_may_raise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[int] = []

    def listen(response: Response) -> None:
        heard.append(response.index)
        raise ValueError("broken listener")

    async with pool_of(Host(STEPS), Host(STEPS)) as pool:
        prompts = [f'[[sim: {{"tokens": {60 - 2 * number}}}]]' for number in range(24)]
        responses = await pool.send_all_batched(prompts, on_response=listen)
    assert all(response.success for response in responses)
    assert sorted(heard) == list(range(24))
    assert heard != sorted(heard)
    assert "broken listener" in caplog.text


async def test_responses_can_be_streamed_as_they_come() -> None:
    async with pool_of(Host(STEPS)) as pool:
        prompts = ['[[sim: {"tokens": 90}]]', '[[sim: {"tokens": 4}]]']
        assert [response.index async for response in pool.stream(prompts)] == [1, 0]
        with pytest.raises(SpecError, match="max_tokens"):
            async for _ in pool.stream(prompts, max_tokens=0):
                pass


async def test_leaving_a_stream_early_cancels_requests_and_leaves_no_task() -> None:
    hosts = [Host(STEPS, Script(answer_tokens=5000)) for _ in range(2)]
    async with pool_of(*hosts, max_tokens=5000) as pool:
        prompts = [saying("first"), *numbered(30)]
        before = asyncio.all_tasks()
        responses = pool.stream(prompts)
        assert (await anext(responses)).text == "first"
        assert asyncio.all_tasks() != before
        await responses.aclose()  # type: ignore[attr-defined]
        assert asyncio.all_tasks() == before
        assert [state.unfinished for state in pool._open.states] == [0, 0]
        await soon(lambda: all(each.on_disconnect is None for host in hosts for each in host.connections))
        assert all(response.success for response in await pool.send_all_batched([saying("b")] * 4))


@pytest.mark.parametrize("turns_before", [0, 1, 2, 3, 20])
async def test_a_call_that_is_cancelled_leaves_nothing_behind(turns_before: int) -> None:
    host = Host(STEPS, Script(answer_tokens=5000))
    async with pool_of(host, max_tokens=5000) as pool:
        before = asyncio.all_tasks()
        call = asyncio.create_task(pool.send_all_batched(numbered(30)))
        for _ in range(turns_before):
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert asyncio.all_tasks() == before
        (state,) = pool._open.states
        assert (state.unfinished, state.batches) == (0, [])
        assert pool._open.endpoint_pool.routing.requests(0) == 0


async def test_concurrent_calls_do_not_mix_their_answers() -> None:
    async with pool_of(Host(STEPS), Host(STEPS)) as pool, asyncio.TaskGroup() as group:
        calls = [
            group.create_task(pool.send_all_batched([saying(f"{call} {number}") for number in range(40)]))
            for call in "abc"
        ]
        calls.append(group.create_task(pool.select([1]).send_all([saying(f"d {number}") for number in range(40)])))
        for name, call in zip("abcd", calls, strict=True):
            assert [response.text for response in await call] == [f"{name} {number}" for number in range(40)]
