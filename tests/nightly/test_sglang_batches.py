"""Whole batches through the public API, on real SGLang."""

import re
from collections.abc import Awaitable, Callable
from typing import Literal

import aiohttp
import pytest
import pytest_asyncio
from pydantic import BaseModel, Field
from scripts.engines.layout import MODEL_NAME

from batch_agent import BatchAgent, ErrorKind, SpecError, Tool

SHARED = "You are the librarian of a small town and answer every question in one short sentence. " * 12
CALL_BY_HEART = 'Reply exactly:\n<tool_call>\n{{"name": "look_up", "arguments": {{"name": "{name}"}}}}\n</tool_call>'
SESSIONS_CLOSED = re.compile(
    r'^sglang:http_responses_total\{endpoint="/close_session",method="POST",status_code="200"\} (.*)$', re.MULTILINE
)


class Verdict(BaseModel):
    mood: Literal["good", "bad"]
    stars: int = Field(ge=1, le=5)


@Tool.define
def look_up(name: str) -> str:
    """Look a person up."""
    return f"{name} is 36 years old."


@pytest.fixture
def backend(sglang_url: str) -> str:
    return sglang_url.replace("http://", "sglang://")


@pytest_asyncio.fixture
async def sessions_closed(sglang_url: str) -> Callable[[], Awaitable[int]]:
    """Asks the server how many sessions it has been told to close."""

    async def count() -> int:
        async with aiohttp.ClientSession() as http, http.get(f"{sglang_url}/metrics") as response:
            counted = SESSIONS_CLOSED.search(await response.text())
        return int(float(counted[1])) if counted else 0

    return count


async def test_agents_share_a_cached_prefix_on_sglang(
    backend: str, sessions_closed: Callable[[], Awaitable[int]]
) -> None:
    before = await sessions_closed()
    results = await BatchAgent.run(
        task="What is {word}?",
        inputs=[{"word": word} for word in ("rain", "snow", "hail", "fog")],
        system_prompt=SHARED,
        backend=backend,
        max_inflight=1,
        max_tokens=12,
    )
    assert [result.error for result in results] == [None] * 4
    assert all(result.output for result in results)
    _, *others = results
    assert all(result.usage.cached >= 128 for result in others), [result.usage for result in results]
    assert await sessions_closed() == before + 4


async def test_sglang_enforces_the_answer_schema(backend: str) -> None:
    results = await BatchAgent.run(
        task="Judge: {text}",
        inputs=["What a lovely day!", "It broke at once."],
        output_schema=Verdict,
        backend=backend,
        max_tokens=60,
        temperature=0.0,
    )
    assert all(isinstance(result.output, Verdict) for result in results), results
    assert all(result.turns == 1 for result in results)


async def test_agents_in_action_mode_on_sglang_hit_their_prefix_in_the_second_turn(backend: str) -> None:
    results = await BatchAgent.run(
        task="How old is {name}? Look the name up first.",
        inputs=[{"name": "Ada"}, {"name": "Bob"}],
        system_prompt=SHARED,
        tools=[look_up],
        output_schema=Verdict,
        tool_mode="action",
        backend=backend,
        max_turns=2,
        max_tokens=80,
        temperature=0.0,
    )
    assert all(isinstance(result.output, Verdict) for result in results), results
    called = [result for result in results if result.tool_calls]
    assert all(result.usage.cached >= 256 for result in called), [result.usage for result in results]


async def test_a_native_tool_call_of_sglang_is_executed_and_answered(backend: str) -> None:
    [result] = await BatchAgent.run(
        task=CALL_BY_HEART,
        inputs=[{"name": "Ada"}],
        tools=[look_up],
        backend=backend,
        max_turns=2,
        max_tokens=60,
        temperature=0.0,
    )
    assert result.error is None
    assert [(call.name, call.ok) for call in result.tool_calls] == [("look_up", True)]
    assert result.turns == 2


async def test_sglang_accepts_every_field_of_a_request(backend: str) -> None:
    results = await BatchAgent.run(
        task="Say {word}.",
        inputs=["hello", "world"],
        system_prompt=SHARED,
        backend=backend,
        max_tokens=8,
        temperature=0.5,
        top_p=0.9,
        seed=7,
        priority=3,
        streaming=True,
    )
    assert [result.error for result in results] == [None] * 2
    assert all(ttft is not None for result in results for ttft in result.timing.ttft)


async def test_a_prompt_beyond_the_window_is_a_context_overflow_error(backend: str) -> None:
    [result] = await BatchAgent.run(task="Summarize: {text}", inputs=["word " * 20_000], backend=backend)
    assert result.error is not None
    assert result.error.kind is ErrorKind.CONTEXT_OVERFLOW
    assert not result.error.retryable


async def test_a_wrong_model_name_is_refused_though_sglang_would_accept_it(backend: str) -> None:
    with pytest.raises(SpecError, match=f"Did you mean '{MODEL_NAME}'"):
        await BatchAgent.run(task="Say {word}.", inputs=["hello"], backend=backend, model=MODEL_NAME + "x")
