"""Whatever a program sends, it is answered or refused."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.completion_services import FakeService, gateway_client

from batch_agent.core.messages import Thought, ToolCall
from batch_agent.core.requests import NO_USAGE, Reply
from batch_agent.programs.gateway.api_protocol import ApiProtocol, ResponseMeta
from batch_agent.programs.gateway.gateway_error import GatewayError
from batch_agent.programs.gateway.handlers import ANTHROPIC, OPENAI, RESPONSES
from batch_agent.programs.gateway.mask import Mask
from batch_agent.programs.gateway.sessions import ClientSession

PATHS = ["/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses"]
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
OPENAI_BODY: dict[str, Any] = {
    "model": "gpt",
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": "ab"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"a": "ab"}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "ab"}]},
    ],
    "tools": [{"type": "function", "function": {"name": "read", "description": "ab", "parameters": SCHEMA}}],
    "tool_choice": {"type": "function", "function": {"name": "read"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.5,
    "max_completion_tokens": 9,
    "stop": ["END"],
    "n": 1,
}
ANTHROPIC_BODY: dict[str, Any] = {
    "model": "claude",
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "ab"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "redacted_thinking", "data": "d"},
                {"type": "text", "text": "ab"},
                {"type": "tool_use", "id": "c1", "name": "read", "input": {"a": "ab"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "ab"}]},
                {"type": "text", "text": "ab"},
            ],
        },
    ],
    "tools": [{"name": "read", "description": "ab", "input_schema": SCHEMA}],
    "tool_choice": {"type": "tool", "name": "read"},
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    "stop_sequences": ["END"],
    "max_tokens": 9,
    "stream": False,
}
RESPONSES_BODY: dict[str, Any] = {
    "model": "gpt",
    "instructions": "Be brief.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "ab"}]},
        {"role": "user", "content": "ab"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "ab"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "ab"}], "encrypted_content": "s"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ab"}]},
        {"type": "function_call", "call_id": "c1", "name": "read", "namespace": "n", "arguments": '{"a": "ab"}'},
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "ab"},
        {"type": "local_shell_call", "call_id": "c3", "action": {"type": "exec", "command": ["ab"], "env": {}}},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "ab"}]},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "ab"},
        {"type": "local_shell_call_output", "call_id": "c3", "output": "ab"},
        {"type": "additional_tools", "tools": [{"type": "function", "name": "late"}]},
    ],
    "tools": [
        {"type": "function", "name": "a", "description": "ab", "parameters": SCHEMA},
        {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "ab"}},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "read", "parameters": SCHEMA}]},
        {"type": "local_shell"},
        {"type": "web_search"},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "a"}]},
    "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
    "reasoning": {"effort": "low"},
    "parallel_tool_calls": False,
    "store": False,
    "stream": True,
    "max_output_tokens": 9,
}
BODIES: list[tuple[ApiProtocol, dict[str, Any]]] = [
    (OPENAI, OPENAI_BODY),
    (ANTHROPIC, ANTHROPIC_BODY),
    (RESPONSES, RESPONSES_BODY),
]
KEYS = ["role", "content", "type", "text", "name", "id", "function"]
plain = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "ab", "c1", "text", "image"])
nonsense = plain | st.lists(plain, max_size=2) | st.dictionaries(st.sampled_from(KEYS), plain, max_size=2)
REPLY = Reply("Hi ab", "calls", NO_USAGE, (ToolCall("c1", "a", '{"ab'),), (Thought("ab", "s"),))


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """All that can be replaced in a value: what it is in, and its key there."""
    for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(item, dict | list):
            yield from places(item)


@st.composite
def spoilt(draw: st.DrawFn, body: dict[str, Any]) -> dict[str, Any]:
    """A body with something else in some of its places."""
    copy: dict[str, Any] = json.loads(json.dumps(body))
    for _ in range(draw(st.integers(1, 3))):
        found = list(places(copy))
        home, key = found[draw(st.integers(0, len(found) - 1))]
        if isinstance(home, dict) and draw(st.booleans()):
            del home[key]
        else:
            home[key] = draw(nonsense)
    return copy


def answered(body: dict[str, Any], protocol: ApiProtocol) -> list[bytes]:
    session = ClientSession("agent", "key", Mask({"ab": "§"}))
    parsed = protocol.read(body)
    reply = session.unmask_reply(REPLY, session.mask_request(parsed.request))
    meta = ResponseMeta("1", 0, parsed.model, parsed.counts, parsed.body)
    return [protocol.reply(reply, meta), protocol.events(reply, meta)]


@pytest.mark.parametrize(("protocol", "body"), BODIES, ids=["openai", "anthropic", "responses"])
def test_a_request_with_all_supported_fields_is_answered(protocol: ApiProtocol, body: dict[str, Any]) -> None:
    assert all(answered(body, protocol))


@settings(max_examples=60)
@given(st.data(), st.sampled_from(BODIES))
def test_a_corrupted_request_is_answered_or_rejected(
    data: st.DataObject, which: tuple[ApiProtocol, dict[str, Any]]
) -> None:
    protocol, body = which
    try:
        assert all(answered(data.draw(spoilt(body)), protocol))
    except GatewayError as refused:
        unmask_reply = protocol.error(refused)
        assert str(refused) in json.loads(unmask_reply)["error"]["message"]  # noqa: PT017 - either way is right


@settings(max_examples=3)
@given(st.lists(st.one_of(*(spoilt(body) for _, body in BODIES), nonsense), min_size=10, max_size=10))
async def test_no_request_body_causes_a_server_error(sent: list[Any]) -> None:
    async with gateway_client(FakeService(), hides={"ab": "§"}) as caller:
        for body in sent:
            for path in PATHS:
                status, unmask_reply = await caller.post(path, body)
                assert status in (200, 400), unmask_reply
        assert (await caller.post(PATHS[0], OPENAI_BODY))[0] == 200


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "nonsense"])
async def test_a_body_with_a_wrong_content_encoding_is_rejected(encoding: str) -> None:
    async with gateway_client(FakeService()) as caller:
        headers = {"x-api-key": caller.key, "Content-Encoding": encoding}
        url = f"{caller.gateway.url}/v1/messages"
        async with caller.session.post(url, data=b"not packed", headers=headers) as response:
            assert 400 <= response.status < 500
