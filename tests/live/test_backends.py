"""What backends promise beside the contract, on real engines: what is seen, sent, shared and kept."""

import asyncio
import json
from uuid import uuid4

import pytest
from scripts.engines.layout import MODEL_NAME

from batch_agent import BatchAgent, ErrorKind, SpecError, Tool
from batch_agent.backends.connect import connect
from batch_agent.backends.diagnostics import DiagnosticCheck, diagnose
from batch_agent.core.messages import Prompt, User
from batch_agent.core.protocols.backend import Traits
from batch_agent.core.requests import Finished, Request, Sampling

SHARED = "You keep the register of a small harbour, and you answer every question in one short sentence. " * 12
HEART = 'Reply exactly:\n<tool_call>\n{{"name": "look_up", "arguments": {{"name": "{name}"}}}}\n</tool_call>'


@Tool.define(effect="read")
def look_up(name: str) -> str:
    """Look a person up."""
    return f"{name} is 36 years old."


def as_scheme(url: str, scheme: str) -> str:
    return url.replace("http", scheme, 1)


async def seen(url: str) -> Traits:
    backend = await connect(url, None, uses_tools=True, notify=lambda text: None)
    await backend.aclose()
    return backend.traits


async def checks(url: str) -> dict[str, DiagnosticCheck]:
    return {check.name: check async for check in diagnose(url, None, lambda text: None)}


@pytest.mark.parametrize("scheme", ["http", "vllm", "anthropic"])
async def test_vllm_is_recognized_with_its_traits(vllm_url: str, scheme: str) -> None:
    traits = await seen(as_scheme(vllm_url, scheme))
    assert (traits.name, traits.model, traits.context_tokens) == ("vllm", MODEL_NAME, 4096)
    assert traits.native_tools
    assert traits.detected[0].startswith("vllm 0.")
    assert "prefix cache on" in traits.detected


async def test_dynamo_is_recognized_with_its_traits(dynamo_url: str) -> None:
    traits = await seen(dynamo_url)
    assert (traits.name, traits.model, traits.native_tools) == ("dynamo", MODEL_NAME, True)


@pytest.mark.parametrize("scheme", ["vllm", "anthropic"])
async def test_doctor_finds_no_problem_with_vllm_in_both_dialects(vllm_url: str, scheme: str) -> None:
    found = await checks(as_scheme(vllm_url, scheme))
    wanted = ("answers", "streaming", "tool calls", "JSON schema", "prefix cache", "metrics", "cached tokens")
    assert {name: found[name].state for name in wanted} == dict.fromkeys(wanted, "ok")


async def test_doctor_finds_no_problem_with_dynamo(dynamo_url: str) -> None:
    found = await checks(dynamo_url)
    wanted = ("answers", "streaming", "tool calls", "cached tokens")
    assert {name: found[name].state for name in wanted} == dict.fromkeys(wanted, "ok")


async def test_an_unknown_model_is_an_error_with_the_closest_name(vllm_url: str) -> None:
    with pytest.raises(SpecError, match=f"Did you mean '{MODEL_NAME}'"):
        await connect(vllm_url, "smollm3", uses_tools=False, notify=lambda text: None)


@pytest.mark.parametrize("scheme", ["vllm", "anthropic"])
async def test_the_second_agent_hits_the_cached_prefix_of_the_first(vllm_url: str, scheme: str) -> None:
    results = await BatchAgent.run(
        task="What is {word}?",
        inputs=[{"word": word} for word in ("a quay", "a buoy", "a tide")],
        system_prompt=SHARED + scheme,
        backend=as_scheme(vllm_url, scheme),
        max_inflight=1,
        max_tokens=8,
    )
    assert [result.error for result in results] == [None] * 3
    assert all(result.usage.cached >= 128 for result in results[1:]), [result.usage for result in results]


async def test_prompts_with_another_cache_salt_share_no_prefix(vllm_url: str) -> None:
    cached = []
    one, two = str(uuid4()), str(uuid4())
    for salt in (one, one, two):
        [result] = await BatchAgent.run(
            task="What is {it}?",
            inputs=["salt"],
            system_prompt=SHARED + "Salt.",
            backend=vllm_url,
            cache_salt=salt,
            max_tokens=4,
        )
        cached.append(result.usage.cached)
    assert cached[0] == cached[2] == 0
    assert cached[1] >= 128


@pytest.mark.parametrize("early", [False, True], ids=["plain", "early"])
@pytest.mark.parametrize("scheme", ["vllm", "anthropic"])
async def test_agents_call_tools_on_vllm_in_both_dialects(vllm_url: str, scheme: str, early: bool) -> None:
    results = await BatchAgent.run(
        task=HEART,
        inputs=[{"name": "Ada"}, {"name": "Bob"}],
        tools=[look_up],
        backend=as_scheme(vllm_url, scheme),
        temperature=0.0,
        max_tokens=64,
        max_turns=2,
        streaming_tool_dispatch=early,
    )
    assert [[(call.name, call.ok) for call in result.tool_calls] for result in results] == [[("look_up", True)]] * 2
    for result, name in zip(results, ("Ada", "Bob"), strict=True):
        assert json.loads(result.tool_calls[0].arguments) == {"name": name}
        assert result.turns == 2


async def test_tools_start_on_dynamos_dispatch_events(dynamo_url: str) -> None:
    queries: list[str] = []

    @Tool.define(effect="pure")
    async def search(query: str) -> str:
        """Search the web."""
        queries.append(query)
        return "Nothing was found."

    [result] = await BatchAgent.run(
        task="Search for {it}.",
        inputs=["things"],
        tools=[search],
        backend=dynamo_url,
        max_tokens=96,
        max_turns=2,
        streaming_tool_dispatch=True,
        extra={"nvext": {"annotations": ["output_replay_id:two_calls"]}},
    )
    assert len(result.tool_calls) == 2
    assert len(queries) == 2


async def test_dynamo_takes_hints_sessions_and_their_end(dynamo_url: str) -> None:
    results = await BatchAgent.run(
        task="What is {word}?",
        inputs=[{"word": word} for word in ("a quay", "a buoy", "a tide")],
        system_prompt=SHARED,
        backend=as_scheme(dynamo_url, "dynamo") + "?sessions=end",
        priority=5,
        cache_salt="mine",
        max_inflight=1,
        max_tokens=8,
        extra={"nvext": {"annotations": ["output_replay_id:text"]}},
    )
    assert [result.error for result in results] == [None] * 3
    # Two workers: by the third agent at least one of them has seen the prefix before.
    assert max(result.usage.cached for result in results) >= 128, [result.usage for result in results]


async def test_a_vllm_with_priorities_serves_advanced_agents_first(vllm_url: str) -> None:
    """The engine has 64 places: the urgent ones, which come last, are in its second round and not in its third."""
    backend = await connect(vllm_url, None, uses_tools=False, notify=lambda text: None)
    finished: list[int] = []

    async def ask(number: int, priority: int) -> None:
        request = Request(
            Prompt(""),
            (User(f"Count to {number}."),),
            MODEL_NAME,
            Sampling(max_tokens=4, temperature=0.0, extra={"ignore_eos": True}),
            agent=f"agent-{number}",
            priority=priority,
        )
        async with backend.stream(request) as deltas:
            *_, last = [delta async for delta in deltas]
        assert isinstance(last, Finished)
        finished.append(number)

    async with asyncio.TaskGroup() as group:
        for number in range(160):
            group.create_task(ask(number, 0))
        for number in range(160, 164):
            group.create_task(ask(number, 7))
    await backend.aclose()
    assert max(finished.index(number) for number in range(160, 164)) < 64 + 64, finished


@pytest.mark.parametrize("scheme", ["vllm", "anthropic"])
async def test_a_prompt_that_is_too_long_fails_its_agent_only(vllm_url: str, scheme: str) -> None:
    long, short = await BatchAgent.run(
        task="{it}", inputs=["word " * 9000, "Say hello."], backend=as_scheme(vllm_url, scheme), max_tokens=8
    )
    assert long.error is not None
    assert long.error.kind is ErrorKind.CONTEXT_OVERFLOW
    assert short.ok
