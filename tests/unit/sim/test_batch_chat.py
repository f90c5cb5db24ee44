"""vLLM's route for many conversations in one request."""

from typing import Any

import pytest

from batch_agent.sim import SimConfig, SimServer

from .conftest import Send

CHAT = "/v1/chat/completions"
BATCH = "/v1/chat/completions/batch"


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def test_each_conversation_gets_the_answer_it_gets_alone(sim: SimServer, send: Send) -> None:
    texts = ['[[sim: {"text": "short"}]]', "long", "longer"]
    alone = [send(sim, CHAT, {"messages": user(text), "max_tokens": 20}).json() for text in texts]
    together = send(sim, BATCH, {"messages": [user(text) for text in texts], "max_tokens": 20}).json()
    assert together["object"] == "chat.completion"
    assert [choice["index"] for choice in together["choices"]] == [0, 1, 2]
    for choice, one in zip(together["choices"], alone, strict=True):
        assert choice["message"] == one["choices"][0]["message"]
        assert choice["finish_reason"] == one["choices"][0]["finish_reason"]
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert together["usage"][count] == sum(each["usage"][count] for each in alone)
    assert together["usage"]["prompt_tokens_details"] is None


def test_one_schema_is_for_all_conversations(sim: SimServer, send: Send) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form = {"type": "json_schema", "json_schema": {"name": "r", "schema": schema}}
    choices = send(sim, BATCH, {"messages": [user("a"), user("b")], "response_format": form}).json()["choices"]
    assert {choice["message"]["content"] for choice in choices} <= {'{"ok":true}', '{"ok":false}'}


def test_it_is_never_streamed_and_never_calls_tools(sim: SimServer, send: Send) -> None:
    tools = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]
    answer = send(sim, BATCH, {"messages": [user("a")], "stream": True, "tools": tools})
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["choices"][0]["message"]["tool_calls"] == []


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([user("fine"), user("x" * 10_000)], "maximum context length"),
        ([user("fine"), []], "at least one message"),
        ([user("fine"), [{"content": "who says that?"}]], "cannot be read"),
        (user("not a list of conversations"), "list with at least one message"),
        ([], "list of conversations"),
        ([user("fine"), user('[[sim: {"fault": "400"}]]')], "simulated failure"),
    ],
    ids=lambda value: str(value)[-40:],
)
def test_one_invalid_conversation_rejects_the_whole_request(
    sim: SimServer, send: Send, messages: Any, words: str
) -> None:
    answer = send(sim, BATCH, {"messages": messages})
    assert answer.status == 400
    assert words in answer.json()["error"]["message"]


def test_an_older_server_has_no_such_route(send: Send) -> None:
    with SimServer(SimConfig(zero_latency=True, batch_chat=False)) as sim:
        assert send(sim, BATCH, {"messages": [user("a")]}).status == 404
        assert BATCH not in send(sim, "/openapi.json").json()["paths"]
