"""The contract of backends, kept by real engines."""

from collections.abc import AsyncIterator

import pytest
from tests.contract.backend_contract import SEARCH, BackendContract, Subject

from batch_agent.backends.connect import connect
from batch_agent.core.messages import Prompt, User
from batch_agent.core.protocols.backend import Backend
from batch_agent.core.requests import Request, Sampling

CALL_BY_HEART = 'Reply exactly:\n<tool_call>\n{"name": "search", "arguments": {"query": "paris"}}\n</tool_call>'


@pytest.fixture(params=["vllm, OpenAI's dialect", "vllm, Anthropic's dialect", "dynamo", "embedded"])
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    match request.param:
        case "dynamo":
            url = request.getfixturevalue("dynamo_url")
        case "embedded":
            url = "local://"
        case _:
            scheme = "anthropic" if "Anthropic" in request.param else "vllm"
            url = request.getfixturevalue("vllm_url").replace("http", scheme)
    backend = await connect(url, None, uses_tools=True, notify=lambda text: None)
    yield _subject_of(backend, is_replayed=request.param == "dynamo")
    await backend.aclose()


def _subject_of(backend: Backend, *, is_replayed: bool) -> Subject:
    def ask(text: str, replay: str, prompt: Prompt, model: str = backend.traits.model) -> Request:
        # Mocker workers speak random tokens, unless they are told what to replay.
        extra = {"nvext": {"annotations": [f"output_replay_id:{replay}"]}} if is_replayed else {}
        return Request(prompt, (User(text),), model, Sampling(max_tokens=48, temperature=0.0, extra=extra))

    fails = ask("word " * 9000, "text", Prompt(""))
    calls = ask(CALL_BY_HEART, "one_call", Prompt("", (SEARCH,))) if backend.traits.native_tools else None
    return Subject(backend, ask("Say hello.", "text", Prompt("")), fails, calls)


class TestEngines(BackendContract):
    pass
