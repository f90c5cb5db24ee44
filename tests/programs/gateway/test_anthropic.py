"""Parsing of requests in Anthropic's API."""

from typing import Any

import pytest

from batch_agent.core.messages import Assistant, Thought, ToolCall, ToolResult, ToolResults, ToolSpec, User
from batch_agent.programs.gateway.anthropic_protocol import AnthropicProtocol
from batch_agent.programs.gateway.api_protocol import ParsedRequest
from batch_agent.programs.gateway.gateway_error import GatewayError

HI = {"role": "user", "content": "Hi"}
READ = ToolCall("c1", "read", '{"path":"a"}')
USE = {"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "a"}}
TOOL = {"name": "read", "description": "Reads.", "input_schema": {"type": "object"}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


def read(*messages: Any, **body: Any) -> ParsedRequest:
    return AnthropicProtocol().read({"messages": list(messages) or [HI], "max_tokens": 9, **body})


def block(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


def test_the_system_prompt_has_no_header_of_the_session() -> None:
    system = [
        block("x-anthropic-billing-header: cc_version=2.1.3; cch=a1b2c;"),
        block("You are Claude Code.", cache_control={"type": "ephemeral"}),
        block("Be brief."),
    ]
    assert read(system=system).request.system == "You are Claude Code.\n\nBe brief."
    assert read(system="x-session-id: 4\nBe brief.").request.system == "Be brief."
    assert read().request.system == ""


def test_user_text_next_to_tool_results_comes_after_them() -> None:
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [block("one"), block("two"), IMAGE]}
    failed = {"type": "tool_result", "tool_use_id": "c2", "content": "no", "is_error": True}
    request = read(
        HI,
        {"role": "assistant", "content": [block("Look."), USE, USE | {"id": "c2"}]},
        {"role": "user", "content": [block("Wait."), result, failed, block("Go on.")]},
    ).request
    other = ToolCall("c2", "read", '{"path":"a"}')
    assert request.messages[1:] == (
        Assistant("Look.", (READ, other)),
        ToolResults(
            (
                ToolResult(READ, "one\ntwo\n[image: left out, the model reads texts only]"),
                ToolResult(other, "no", is_error=True),
            )
        ),
        User("Wait.\nGo on."),
    )


def test_tool_results_in_several_messages_are_one_turn() -> None:
    result = {"type": "tool_result", "tool_use_id": "c1"}
    request = read(
        HI,
        {"role": "assistant", "content": [USE, USE | {"id": "c2"}]},
        {"role": "user", "content": [result]},
        {"role": "user", "content": [result | {"tool_use_id": "c2"}]},
    ).request
    assert [len(each.results) for each in request.messages if isinstance(each, ToolResults)] == [2]


def test_a_tool_result_of_an_unknown_call_is_plain_text() -> None:
    lost = {"type": "tool_result", "tool_use_id": "lost", "content": "?"}
    assert read({"role": "user", "content": [lost]}).request.messages == (
        User("[The result of an earlier tool call]\n?"),
    )


def test_reasoning_is_decoded_with_its_signatures() -> None:
    content = [
        {"type": "thinking", "thinking": "Hm.", "signature": "sig"},
        {"type": "redacted_thinking", "data": "xyz"},
        block("Yes."),
    ]
    request = read(HI, {"role": "assistant", "content": content}).request
    assert request.messages[1] == Assistant("Yes.", (), (Thought("Hm.", "sig"), Thought(redacted="xyz")))


def test_consecutive_user_messages_are_not_merged() -> None:
    request = read(HI, HI, {"role": "user", "content": [block("a"), block("b")]}).request
    assert request.messages == (User("Hi"), User("Hi"), User("a\nb"))


def test_a_later_system_message_does_not_change_the_prefix() -> None:
    request = read(HI, {"role": "system", "content": [block("Stop.")]}).request
    assert request.messages == (User("Hi"), User("<system>\nStop.\n</system>"))


def test_tool_definitions_are_decoded() -> None:
    request = read(tools=[TOOL, {"type": "custom", "name": "b", "input_schema": {}, "cache_control": {}}]).request
    assert request.tools == (ToolSpec("read", "Reads.", {"type": "object"}), ToolSpec("b", "", {}))


@pytest.mark.parametrize(
    ("choice", "meant"),
    [(None, "auto"), ("auto", "auto"), ("none", "none"), ("any", "required"), ("tool", "required")],
)
def test_tool_choice_is_decoded(choice: Any, meant: str) -> None:
    chosen = choice and {"type": choice, "name": "read"}
    assert read(tools=[TOOL], tool_choice=chosen).request.tool_choice == meant
    assert read(tool_choice=chosen).request.tool_choice == "auto"


def test_a_forced_tool_is_decoded_and_all_tools_stay_in_the_prompt() -> None:
    tools = [TOOL, {"name": "beta", "input_schema": {}}]
    request = read(tools=tools, tool_choice={"type": "tool", "name": "beta"}).request
    assert (request.tool_choice, request.tool_name, [tool.name for tool in request.tools]) == (
        "required",
        "beta",
        ["read", "beta"],
    )
    assert read(tools=tools, tool_choice={"type": "any"}).request.tool_name == ""
    for odd in ({"type": "tool", "name": "gamma"}, {"type": "tool"}):
        with pytest.raises(GatewayError, match="tool_choice"):
            read(tools=tools, tool_choice=odd)


@pytest.mark.parametrize("kind", ["auto", "any"])
def test_parallel_tool_calls_may_be_disabled(kind: str) -> None:
    assert read(tools=[TOOL], tool_choice={"type": kind, "disable_parallel_tool_use": True}).request.single_call
    assert not read(tools=[TOOL], tool_choice={"type": kind}).request.single_call


def test_sampling_and_other_fields_are_decoded() -> None:
    parsed = read(temperature=1, top_p=0.9, stop_sequences=["END"], stream=True, model="claude", thinking={"type": "?"})
    chosen = parsed.request.sampling
    assert (chosen.temperature, chosen.top_p, chosen.stop, chosen.max_tokens) == (1, 0.9, ("END",), 9)
    assert (parsed.model, parsed.stream, parsed.counts) == ("claude", True, True)


@pytest.mark.parametrize("where", ["output_config", "output_format"])
def test_the_answer_schema_is_decoded(where: str) -> None:
    form = {"type": "json_schema", "schema": {"type": "array"}}
    request = read(**{where: {"format": form} if where == "output_config" else form}).request
    assert request.answer_schema == {"type": "array"}
    assert read(output_config={"effort": "low"}).request.answer_schema is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"messages": []}, "messages must not be empty"),
        ({"messages": None}, "messages must not be empty"),
        ({"messages": [{"role": "tool", "content": "Hi"}]}, r"messages\[0\].role must be"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "'image': the model .* reads only text"),
        ({"messages": [{"role": "user", "content": 7}]}, "content must be a string or a list"),
        (
            {"messages": [HI, {"role": "assistant", "content": [{"type": "tool_use"}]}]},
            "name must be a non-empty string",
        ),
        ({"messages": [HI, {"role": "assistant", "content": [{"type": "server_tool_use"}]}]}, "'server_tool_use'"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "only Anthropic's servers run"),
        ({"tools": [{"name": "a"}]}, "input_schema must be a JSON schema"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice must be"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format must be"),
        ({"stop_sequences": {}}, "stop_sequences must be a list of strings"),
    ],
)
def test_an_unsupported_or_invalid_field_is_rejected(body: dict[str, Any], message: str) -> None:
    with pytest.raises(GatewayError, match=message) as raised:
        AnthropicProtocol().read({"messages": [HI], **body})
    assert raised.value.status == 400
