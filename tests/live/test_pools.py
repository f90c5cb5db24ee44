"""Pools of real engines: lists of prompts that the server reads as conversations, and what one bad prompt costs."""

import socket
from collections.abc import Iterator, Mapping
from typing import Any

import aiohttp
import pytest
from scripts.engines.layout import MODEL_NAME

from batch_agent import BatchAgent, ErrorKind, VLLMPool
from batch_agent.backends.connect import connect
from batch_agent.backends.http_backend import HttpBackend
from batch_agent.pools.prompt_transport import find_chat_template

QUESTIONS = [f"What is a {word}?" for word in ("quay", "buoy", "pier", "tide", "gull", "mast")]
ODD_TEXTS = [
    "Hi",
    "  spaces around  ",
    "two\n\nlines\n",
    "Grüße, 世界 🙂",
    '{"json": [1, 2]}',
    "<b>bold</b>",
    "a" * 300,
]
LIMIT = 8


@pytest.fixture
def dead_url() -> Iterator[str]:
    """Of a port that is taken, and at which nobody listens."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{holder.getsockname()[1]}"


async def tokens(url: str, **asked: Any) -> list[int]:
    """As the server sees a text, or a conversation."""
    body = {"model": MODEL_NAME, **asked}
    async with aiohttp.ClientSession() as session, session.post(f"{url}/tokenize", json=body) as response:
        said: Mapping[str, Any] = await response.json()
        return list(said["tokens"])


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


async def test_a_templated_prompt_has_the_same_tokens_as_the_conversation_on_vllm(vllm_url: str) -> None:
    backend = await connect(vllm_url, None, uses_tools=False, notify=lambda text: None)
    assert isinstance(backend, HttpBackend)
    wrapping = await find_chat_template(backend.server, MODEL_NAME)
    await backend.aclose()
    assert wrapping is not None
    assert wrapping.prefix
    for text in ODD_TEXTS:
        wrapped = await tokens(vllm_url, prompt=wrapping.render(text), add_special_tokens=False)
        assert wrapped == await tokens(vllm_url, messages=user(text)), text


async def test_vllm_answers_a_list_of_prompts_in_one_request_and_counts_each(vllm_url: str) -> None:
    came: list[int] = []
    async with VLLMPool([vllm_url], max_tokens=LIMIT, prompts_per_endpoint=len(QUESTIONS)) as pool:
        responses = await pool.send_all_batched(QUESTIONS, on_response=lambda response: came.append(response.index))
        assert pool.requests == 1
    assert [response.index for response in responses] == list(range(len(QUESTIONS)))
    assert sorted(came) == list(range(len(QUESTIONS)))
    for question, response in zip(QUESTIONS, responses, strict=True):
        assert response.text
        assert response.usage.input == len(await tokens(vllm_url, messages=user(question)))
        assert 1 <= response.usage.output <= LIMIT
        assert (response.finish, response.kind) in (("length", ErrorKind.TRUNCATED), ("stop", None))


async def test_a_prompt_too_long_for_vllm_fails_alone(vllm_url: str) -> None:
    prompts = [*QUESTIONS[:4], "word " * 9000, QUESTIONS[4]]
    async with VLLMPool([vllm_url], max_tokens=LIMIT) as pool:
        responses = await pool.send_all_batched(prompts)
        asked = pool.requests
    assert [response.kind for response in responses if not response.text] == [ErrorKind.CONTEXT_OVERFLOW]
    assert responses[4].kind is ErrorKind.CONTEXT_OVERFLOW
    assert asked <= 1 + 2 * 3, "each halving costs a request, and one more for what was not at fault"


async def test_a_run_works_without_an_unreachable_endpoint(vllm_url: str, dead_url: str) -> None:
    results = await BatchAgent.run(
        task="{it}", inputs=QUESTIONS[:4], backend=[dead_url, vllm_url], max_tokens=LIMIT, progress=False
    )
    assert [result.error for result in results] == [None] * 4
    assert all(result.output for result in results)


async def test_dynamo_without_a_visible_template_gets_prompts_as_conversations(
    dynamo_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with VLLMPool([f"{dynamo_url}/v1"], max_tokens=LIMIT) as pool:
        responses = [*await pool.send_all_batched(QUESTIONS), *await pool.send_all_batched(QUESTIONS)]
        assert pool.requests == 2 * len(QUESTIONS)
    assert all(response.text for response in responses)
    assert all(response.usage.output == LIMIT for response in responses)
    said = [line for line in capsys.readouterr().err.splitlines() if "in its own request" in line]
    assert len(said) == 1


async def test_dynamo_accepts_a_batch_of_raw_prompts(dynamo_url: str) -> None:
    async with VLLMPool([f"{dynamo_url}/v1"], max_tokens=LIMIT, raw=True) as pool:
        responses = await pool.send_all_batched(QUESTIONS)
        assert pool.requests == 1
    assert [response.kind for response in responses] == [ErrorKind.TRUNCATED] * len(QUESTIONS)
    assert all(response.text for response in responses)
