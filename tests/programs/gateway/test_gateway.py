"""The gateway over HTTP: keys, routes and rejected requests."""

import gzip
from collections.abc import Mapping
from io import BytesIO
from itertools import pairwise
from typing import Any

import orjson
import pytest
from tests.support.completion_services import (
    BODY,
    CHAT,
    HELLO,
    MESSAGES,
    RESPONSES,
    Caller,
    FakeService,
    error_of,
    gateway_client,
)

from batch_agent.core.messages import Assistant, ToolCall, ToolResult, ToolResults, User
from batch_agent.core.requests import NO_USAGE, Reply

each = pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])


def text_of(body: bytes) -> str:
    answer = orjson.loads(body)
    if "choices" in answer:
        return str(answer["choices"][0]["message"]["content"])
    return str((answer["output"][0] if "output" in answer else answer)["content"][0]["text"])


@each
@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer {}"},
        {"authorization": "bearer {}"},
        {"x-api-key": "{}"},
        {"api-key": "{}"},
        {"Authorization": "Bearer wrong", "X-Api-Key": "{}"},
    ],
)
async def test_a_key_identifies_its_agent(path: str, headers: dict[str, str]) -> None:
    service = FakeService()
    async with gateway_client(service) as caller:
        gateway = caller.gateway
        other = gateway.admit("agent-2", {})
        assert gateway.admit("agent-2", {}) == other != caller.key
        for key in (caller.key, other):
            sent = {name: value.format(key) for name, value in headers.items()}
            async with caller.session.post(gateway.url + path, json=BODY, headers=sent) as response:
                assert response.status == 200
        assert [agent for agent, _ in service.received] == ["agent-1", "agent-2"]


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES, "/v1/models"])
@pytest.mark.parametrize("headers", [{}, {"x-api-key": "wrong"}, {"Authorization": "Basic wrong"}])
async def test_a_request_without_a_valid_key_is_rejected(path: str, headers: dict[str, str]) -> None:
    service = FakeService()
    async with gateway_client(service) as caller:
        method = "GET" if path.endswith("models") else "POST"
        async with caller.session.request(method, caller.gateway.url + path, json=BODY, headers=headers) as response:
            assert response.status == 401
            assert response.headers["x-should-retry"] == "false"
            error = error_of(await response.read())
    assert "in the header Authorization: Bearer or x-api-key" in error["message"]
    assert error.get("code") == "invalid_api_key" or error["type"] == "authentication_error"
    assert not service.received


async def test_the_key_of_a_dismissed_agent_is_rejected_and_a_new_one_works() -> None:
    async with gateway_client(FakeService()) as caller:
        caller.gateway.dismiss("agent-1")
        caller.gateway.dismiss("nobody")
        assert (await caller.post(CHAT, BODY))[0] == 401
        assert caller.gateway.admit("agent-1", {}) != caller.key


async def test_masked_strings_may_change_while_the_key_stays() -> None:
    service = FakeService()
    async with gateway_client(service, hides={"Hi": "Hello"}) as caller:
        await caller.post(CHAT, BODY)
        assert caller.gateway.admit("agent-1", {"Hi": "Welcome"}) == caller.key
        await caller.post(CHAT, BODY)
    assert [request.messages for _, request in service.received] == [(User("Hello"),), (User("Welcome"),)]


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/v1/chat/completions", "/v1//chat/completions?a=b"])
async def test_chat_completions_are_served_under_all_usual_paths(path: str) -> None:
    async with gateway_client(FakeService()) as caller:
        status, body = await caller.post(path, BODY)
    assert (status, text_of(body)) == (200, "Hello.")


@pytest.mark.parametrize("path", ["/messages", "/v1/messages?beta=true", "/responses", "/v1/v1/responses"])
async def test_other_routes_are_served_under_all_usual_paths(path: str) -> None:
    async with gateway_client(FakeService()) as caller:
        status, body = await caller.post(path, BODY)
    assert (status, text_of(body)) == (200, "Hello.")
    assert orjson.loads(body)["model"] == "gpt"


async def test_any_model_name_is_accepted() -> None:
    async with gateway_client(FakeService()) as caller:
        headers = {"x-api-key": caller.key}
        for path, name in [("/v1/models", "the-model"), ("/models", "the-model"), ("/v1/models/a/b", "a/b")]:
            async with caller.session.get(caller.gateway.url + path, headers=headers) as response:
                found = await response.json()
                assert (found["data"][0] if "data" in found else found)["id"] == name
        status, body = await caller.post(CHAT, {"messages": BODY["messages"]})
        assert (status, orjson.loads(body)["model"]) == (200, "the-model")


async def test_tokens_are_estimated() -> None:
    tools = [{"name": "read", "description": "x" * 96, "input_schema": {}}]
    async with gateway_client(FakeService()) as caller:
        status, body = await caller.post(f"{MESSAGES}/count_tokens", {**BODY, "system": "y" * 100, "tools": tools})
    assert (status, orjson.loads(body)) == (200, {"input_tokens": 51})


async def test_the_root_answers_health_checks() -> None:
    async with gateway_client(FakeService()) as caller:
        for method in ("GET", "HEAD"):
            async with caller.session.request(method, caller.gateway.url) as response:
                assert response.status == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/responses/resp_1/cancel", 404),
        ("/v1/completions", 400),
        ("/embeddings", 400),
        ("/v1/images/generations", 404),
        ("/v1/models", 405),
        ("/api/event_logging/batch", 404),
    ],
)
async def test_an_unsupported_route_names_the_supported_ones(path: str, status: int) -> None:
    async with gateway_client(FakeService()) as caller:
        found, body = await caller.post(path, BODY)
    assert found == status
    assert "Supported: POST /v1/chat/completions" in error_of(body)["message"]


@each
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"Hi"', b"\xff", b"NaN", b'{"messages": [1e999]}', b"[" * 100_000])
async def test_a_body_that_is_not_a_json_object_is_rejected(path: str, body: bytes) -> None:
    async with gateway_client(FakeService()) as caller:
        status, said = await caller.post(path, body)
    assert status == 400
    assert error_of(said)["type"] == "invalid_request_error"


@each
async def test_a_lone_surrogate_in_a_request_is_replaced(path: str) -> None:
    service = FakeService()
    said = b'[{"role": "user", "content": "cut \\ud83d"}]'
    body = b'{"messages": %b, "input": %b}' % (said, said)
    async with gateway_client(service) as caller:
        assert (await caller.post(path, body))[0] == 200
    assert service.request.messages == (User("cut \ufffd"),)


@each
@pytest.mark.parametrize("depth", [300, 900])
async def test_a_request_nested_too_deeply_is_rejected(path: str, depth: int) -> None:
    deep = b'{"a":' * depth + b"{}" + b"}" * depth
    tool = {
        CHAT: b'{"function":{"name":"a","parameters":%b}}',
        MESSAGES: b'{"type":"custom","name":"a","input_schema":%b}',
        RESPONSES: b'{"type":"function","name":"a","parameters":%b}',
    }[path]
    body = b'{"input":"Hi","messages":[{"role":"user","content":"Hi"}],"tools":[%b]}' % (tool % deep)
    async with gateway_client(FakeService(), hides={"a": "b"}) as caller:
        status, said = await caller.post(path, body)
    assert status == 400
    assert "nested too deep" in error_of(said)["message"]


async def test_a_request_body_is_limited_in_size() -> None:
    service, path = FakeService(), MESSAGES
    async with gateway_client(service) as caller:
        large = b'{"messages": [{"role": "user", "content": "%b"}]}' % (b"x" * 8_000_000)
        assert await _post_large(caller, path, large) == 200
        status = await _post_large(caller, path, bytes(64 * 2**20 + 1))
        bomb = gzip.compress(bytes(200_000_000), 1)
        assert await _post_large(caller, path, bomb, {"Content-Encoding": "gzip"}) == 413
    assert status == 413
    assert len(str(service.request.messages)) > 8_000_000


async def test_each_turn_of_a_program_begins_with_the_prompt_of_the_turn_before() -> None:
    own = Reply("\n\n", "calls", NO_USAGE, (ToolCall("", "read", '{ "b": "/work/x", "a": 1.0 }'),))
    service = FakeService([own, Reply("Found it.\n", "stop", NO_USAGE), HELLO])
    async with gateway_client(service, hides={"/runs/1": "/work"}) as caller:
        history: list[Any] = [{"role": "user", "content": "Find /runs/1/x."}]
        _, body = await caller.post(CHAT, {"messages": history})
        call = orjson.loads(body)["choices"][0]["message"]["tool_calls"][0]
        assert call["function"]["arguments"] == '{ "b": "/runs/1/x", "a": 1.0 }'
        again = {**call, "function": {"name": "read", "arguments": '{"a":1,"b":"/runs/1/x"}'}}
        history.append({"role": "assistant", "content": None, "tool_calls": [again]})
        history.append({"role": "tool", "tool_call_id": call["id"], "content": "here"})
        _, body = await caller.post(CHAT, {"messages": history})
        history.append({"role": "assistant", "content": text_of(body).strip()})
        history.append({"role": "user", "content": "Thanks."})
        await caller.post(CHAT, {"messages": history})
    made = ToolCall(call["id"], "read", own.calls[0].arguments)
    assert service.request.messages == (
        User("Find /work/x."),
        Assistant("\n\n", (made,)),
        ToolResults((ToolResult(made, "here"),)),
        Assistant("Found it.\n"),
        User("Thanks."),
    )
    turns = [request.messages for _, request in service.received]
    assert all(later[: len(turn)] == turn for turn, later in pairwise(turns))


async def _post_large(caller: Caller, path: str, body: bytes, more: Mapping[str, str] | None = None) -> int:
    headers = {"x-api-key": caller.key, **(more or {})}
    async with caller.session.post(caller.gateway.url + path, data=BytesIO(body), headers=headers) as response:
        await response.read()
        return response.status
