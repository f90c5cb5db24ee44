"""Tokens and the chat template, as a client sees them."""

import json
from typing import Any

import pytest

from batch_agent.sim import SimServer

from .conftest import Send

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
        },
    }
]
SCHEMA = {"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"]}


def rendered(sim: SimServer, send: Send, **body: Any) -> str:
    tokens = send(sim, "/tokenize", body).json()["tokens"]
    text: str = send(sim, "/detokenize", {"tokens": tokens}).json()["prompt"]
    return text


@pytest.mark.parametrize("text", ["", "a", "four", "größer als 日本 🎉", "ends in blank   ", "<|user|>x<//>", "\x00\n"])
def test_a_text_survives_the_way_there_and_back(sim: SimServer, send: Send, text: str) -> None:
    said = send(sim, "/tokenize", {"prompt": text}).json()
    assert said["count"] == len(said["tokens"])
    assert said["max_model_len"] == 2048
    assert send(sim, "/detokenize", {"tokens": said["tokens"]}).json() == {"prompt": text}


def test_the_template_shows_around_a_marker(sim: SimServer, send: Send) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "MARKER"}]
    before, _, after = rendered(sim, send, messages=messages).partition("MARKER")
    assert before == "<|system|>Be brief.<//><|user|>"
    assert after == "<//><|assistant|>"
    assert rendered(sim, send, messages=messages, add_generation_prompt=False) == before + "MARKER<//>"


def test_a_conversation_has_the_same_tokens_as_its_text(sim: SimServer, send: Send) -> None:
    messages = [{"role": "user", "content": "odd"}, {"role": "assistant", "content": "yes"}, {"role": "user"}]
    tokens = send(sim, "/tokenize", {"messages": messages, "tools": TOOLS}).json()["tokens"]
    text = rendered(sim, send, messages=messages, tools=TOOLS)
    assert send(sim, "/tokenize", {"prompt": text}).json()["tokens"] == tokens


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "r", "schema": SCHEMA}}},
        {"structured_outputs": {"json": SCHEMA}},
    ],
    ids=["text", "response_format", "structured_outputs"],
)
@pytest.mark.parametrize("text", ["hello", '[[sim: [{"text": "used"}, {"json": {"score": 7}}]]]'])
def test_a_rendered_conversation_is_answered_as_the_conversation_is(
    sim: SimServer, send: Send, more: dict[str, Any], text: str
) -> None:
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": "used"}, {"role": "user"}]
    body = {"max_tokens": 100, **more}
    chat = send(sim, CHAT, {"messages": messages, **body}).json()
    completion = send(sim, COMPLETIONS, {"prompt": rendered(sim, send, messages=messages), **body}).json()
    assert completion["choices"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert completion["choices"][0]["finish_reason"] == chat["choices"][0]["finish_reason"]
    assert completion["usage"]["total_tokens"] == chat["usage"]["total_tokens"]


def test_calls_come_as_text_and_the_turn_after_them_hits_the_cache(sim: SimServer, send: Send) -> None:
    messages = [{"role": "user", "content": "call a tool " * 30}]
    prompt = rendered(sim, send, messages=messages, tools=TOOLS)
    first = send(sim, COMPLETIONS, {"prompt": prompt, "max_tokens": 100}).json()
    call = first["choices"][0]["text"]
    assert json.loads(call.removeprefix("<tool_call>").removesuffix("</tool_call>"))["name"] == "search"
    assert first["choices"][0]["finish_reason"] == "stop"
    following = prompt + call + "<//><|tool|>found<//><|assistant|>"
    second = send(sim, COMPLETIONS, {"prompt": following, "max_tokens": 100}).json()
    assert "<tool_call>" not in second["choices"][0]["text"]
    known = first["usage"]["total_tokens"]
    assert known - 17 <= second["usage"]["prompt_tokens_details"]["cached_tokens"] < known


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/tokenize", {}, 400),
        ("/tokenize", {"prompt": ["a", "b"]}, 400),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404),
        ("/detokenize", {}, 400),
        ("/detokenize", {"tokens": ["a"]}, 400),
        ("/detokenize", {"tokens": [-1]}, 400),
        ("/detokenize", {"tokens": [1], "model": "other"}, 404),
    ],
    ids=str,
)
def test_what_cannot_be_tokenized_is_refused(
    sim: SimServer, send: Send, path: str, body: dict[str, Any], status: int
) -> None:
    answer = send(sim, path, body)
    assert answer.status == status
    assert answer.json()["error"]["code"] == status


def test_the_routes_are_listed(sim: SimServer, send: Send) -> None:
    paths = send(sim, "/openapi.json").json()["paths"]
    for path in (COMPLETIONS, CHAT, "/v1/chat/completions/batch", "/tokenize", "/detokenize"):
        assert "post" in paths[path]
    assert "get" in paths["/v1/models"]
