"""Whole batches through the public API, on real engines."""

from typing import Literal

import pytest
from pydantic import BaseModel, Field
from scripts.engines.layout import MODEL_NAME

from batch_agent import BatchAgent, ErrorKind, SpecError, Tool

SHARED = "You are the librarian of a small town and answer every question in one short sentence. " * 12
CALL_BY_HEART = 'Reply exactly:\n<tool_call>\n{{"name": "look_up", "arguments": {{"name": "{name}"}}}}\n</tool_call>'


class Verdict(BaseModel):
    mood: Literal["good", "bad"]
    stars: int = Field(ge=1, le=5)


@Tool.define
def look_up(name: str) -> str:
    """Look a person up."""
    return f"{name} is 36 years old."


async def test_agents_share_a_cached_prefix_on_vllm(vllm_url: str) -> None:
    results = await BatchAgent.run(
        task="What is {word}?",
        inputs=[{"word": word} for word in ("rain", "snow", "hail", "fog")],
        system_prompt=SHARED,
        backend=vllm_url.replace("http://", "vllm://"),
        max_inflight=1,
        max_tokens=12,
    )
    assert [result.error for result in results] == [None] * 4
    assert all(result.output for result in results)
    first, *others = results
    assert all(result.usage.cached >= 128 for result in others), [result.usage for result in results]
    assert first.usage.input > 128


async def test_vllm_enforces_the_answer_schema(vllm_url: str) -> None:
    results = await BatchAgent.run(
        task="Judge: {text}",
        inputs=["What a lovely day!", "It broke at once."],
        output_schema=Verdict,
        backend=vllm_url,
        max_tokens=60,
        temperature=0.0,
    )
    assert all(isinstance(result.output, Verdict) for result in results), results
    assert all(result.turns == 1 for result in results)


async def test_agents_in_action_mode_on_vllm_hit_their_prefix_in_the_second_turn(vllm_url: str) -> None:
    results = await BatchAgent.run(
        task="How old is {name}? Look the name up first.",
        inputs=[{"name": "Ada"}, {"name": "Bob"}],
        system_prompt=SHARED,
        tools=[look_up],
        output_schema=Verdict,
        tool_mode="action",
        backend=vllm_url,
        max_turns=2,
        max_tokens=80,
        temperature=0.0,
    )
    assert all(isinstance(result.output, Verdict) for result in results), results
    called = [result for result in results if result.tool_calls]
    assert all(result.usage.cached >= 256 for result in called), [result.usage for result in results]


async def test_a_native_tool_call_of_vllm_is_executed_and_answered(vllm_url: str) -> None:
    [result] = await BatchAgent.run(
        task=CALL_BY_HEART,
        inputs=[{"name": "Ada"}],
        tools=[look_up],
        backend=vllm_url,
        max_turns=2,
        max_tokens=60,
        temperature=0.0,
    )
    assert result.error is None
    assert [call.name for call in result.tool_calls] == ["look_up"]
    assert result.turns == 2


async def test_streamed_turns_have_a_time_to_first_token(vllm_url: str) -> None:
    [result] = await BatchAgent.run(
        task="Say {word}.", inputs=["hello"], backend=vllm_url, streaming=True, max_tokens=8
    )
    [ttft] = result.timing.ttft
    assert ttft is not None
    assert 0 < ttft <= result.timing.total


async def test_a_prompt_beyond_the_window_is_a_context_overflow_error(vllm_url: str) -> None:
    [result] = await BatchAgent.run(task="Summarize: {text}", inputs=["word " * 20_000], backend=vllm_url)
    assert result.error is not None
    assert result.error.kind is ErrorKind.CONTEXT_OVERFLOW
    assert not result.error.retryable


async def test_a_wrong_model_name_is_refused_with_a_suggestion(vllm_url: str) -> None:
    with pytest.raises(SpecError, match=f"Did you mean '{MODEL_NAME}'"):
        await BatchAgent.run(task="Say {word}.", inputs=["hello"], backend=vllm_url, model=MODEL_NAME + "x")


async def test_dynamo_accepts_every_field_of_a_request(dynamo_url: str) -> None:
    results = await BatchAgent.run(
        task="Say {word}.",
        inputs=["hello", "world", "again"],
        system_prompt=SHARED,
        backend=dynamo_url.replace("http://", "dynamo://"),
        max_tokens=8,
        temperature=0.5,
        top_p=0.9,
        seed=7,
        streaming=True,
    )
    assert [result.error for result in results] == [None] * 3
    assert all(result.finish == "length" for result in results)


async def test_a_tool_call_that_dynamo_parsed_is_executed(dynamo_url: str) -> None:
    @Tool.define
    def search(query: str) -> str:
        """Search."""
        return f"nothing about {query}"

    [result] = await BatchAgent.run(
        task="Search for {what}.",
        inputs=["vllm"],
        tools=[search],
        backend=dynamo_url,
        max_turns=2,
        max_tokens=60,
        extra={"nvext": {"annotations": ["output_replay_id:one_call"]}},
    )
    assert [(call.name, call.ok) for call in result.tool_calls] == [("search", True)], result


@pytest.mark.parametrize("scheme", ["vllm", pytest.param("anthropic", marks=pytest.mark.nightly)])
async def test_the_last_turn_follows_the_schema_with_native_tools(vllm_url: str, scheme: str) -> None:
    [result] = await BatchAgent.run(
        task=CALL_BY_HEART,
        inputs=[{"name": "Ada"}],
        tools=[look_up],
        output_schema=Verdict,
        backend=vllm_url.replace("http", scheme),
        tool_mode="native",
        max_turns=2,
        max_tokens=60,
        max_retries=0,
        temperature=0.0,
    )
    assert isinstance(result.output, Verdict), result
