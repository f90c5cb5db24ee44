"""Parsing of requests in OpenAI's API."""

from typing import Any

import pytest

from batch_agent.core.messages import Assistant, Thought, ToolCall, ToolResult, ToolResults, ToolSpec, User
from batch_agent.programs.gateway.api_protocol import ParsedRequest
from batch_agent.programs.gateway.gateway_error import GatewayError
from batch_agent.programs.gateway.openai_protocol import OpenAIProtocol

HI = {"role": "user", "content": "Hi"}
READ = ToolCall("c1", "read", '{"path": "a"}')
CALL = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
ALLOWED = {"type": "function", "function": {"name": "read"}}
TOOL = {"type": "function", "function": {"name": "read", "description": "Reads.", "parameters": {"type": "object"}}}


def read(*messages: Any, **body: Any) -> ParsedRequest:
    return OpenAIProtocol().read({"messages": list(messages) or [HI], **body})


def test_system_messages_at_the_beginning_are_the_system_prompt() -> None:
    parts = [{"type": "text", "text": "x-anthropic-billing-header: cch=1f2;"}, {"type": "text", "text": "Be exact."}]
    request = read({"role": "system", "content": "Be brief."}, {"role": "developer", "content": parts}, HI).request
    assert request.system == "Be brief.\n\nBe exact."
    assert request.messages == (User("Hi"),)


def test_a_later_system_message_does_not_change_the_prefix() -> None:
    request = read(HI, {"role": "system", "content": "Stop."}, HI).request
    assert request.messages == (User("Hi"), User("<system>\nStop.\n</system>"), User("Hi"))
    assert request.system == ""


def test_consecutive_user_messages_are_not_merged() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = read(HI, HI, {"role": "user", "content": parts}).request
    assert request.messages == (User("Hi"), User("Hi"), User("a\nb"))


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_text_reasoning_and_calls_of_the_assistant_are_decoded(field: str) -> None:
    request = read(HI, {"role": "assistant", "content": None, "tool_calls": [CALL], field: "Hm."}).request
    assert request.messages[1] == Assistant("", (READ,), (Thought("Hm."),))


def test_arguments_that_are_an_object_become_json_text() -> None:
    function = {"name": "read", "arguments": {"path": "a"}}
    request = read(HI, {"role": "assistant", "tool_calls": [{"id": "c1", "function": function}]}).request
    assert request.messages[1] == Assistant("", (ToolCall("c1", "read", '{"path":"a"}'),))


def test_consecutive_tool_results_are_one_turn() -> None:
    other = {"id": "c2", "type": "function", "function": {"name": "list", "arguments": ""}}
    parts = [{"type": "text", "text": "two"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    request = read(
        HI,
        {"role": "assistant", "content": "Look.", "tool_calls": [CALL, other]},
        {"role": "tool", "tool_call_id": "c2", "content": parts},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
    ).request
    results = ToolResult(ToolCall("c2", "list", ""), "two\n[image_url: left out, the model reads texts only]")
    assert request.messages[2:] == (ToolResults((results, ToolResult(READ, "one"))),)


def test_a_tool_result_of_an_unknown_call_is_plain_text_after_the_other_results() -> None:
    request = read(
        HI,
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "lost", "content": "?"},
        {"role": "tool", "content": "??"},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
    ).request
    stray = tuple(User(f"[The result of an earlier tool call]\n{text}") for text in ("?", "??"))
    assert request.messages[2:] == (ToolResults((ToolResult(READ, "one"),)), *stray)


def test_tool_definitions_are_decoded() -> None:
    bare = {"type": "function", "function": {"name": "bare"}}
    request = read(tools=[TOOL, bare]).request
    assert request.tools == (
        ToolSpec("read", "Reads.", {"type": "object"}),
        ToolSpec("bare", "", {"type": "object", "properties": {}}),
    )


@pytest.mark.parametrize(
    ("choice", "meant"),
    [
        (None, "auto"),
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "function": {"name": "read"}}, "required"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [ALLOWED]}}, "required"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [ALLOWED]}}, "auto"),
    ],
)
def test_tool_choice_is_decoded(choice: Any, meant: str) -> None:
    assert read(tools=[TOOL], tool_choice=choice).request.tool_choice == meant
    assert read(tool_choice=choice).request.tool_choice == "auto"


def test_a_forced_tool_is_decoded_and_all_tools_stay_in_the_prompt() -> None:
    tools = [TOOL, {"type": "function", "function": {"name": "beta"}}]
    request = read(tools=tools, tool_choice={"type": "function", "function": {"name": "beta"}}).request
    assert (request.tool_choice, request.tool_name, [tool.name for tool in request.tools]) == (
        "required",
        "beta",
        ["read", "beta"],
    )
    assert read(tools=tools, tool_choice="required").request.tool_name == ""
    with pytest.raises(GatewayError, match="tool_choice names 'gamma', which is not among the tools of this request"):
        read(tools=tools, tool_choice={"type": "function", "function": {"name": "gamma"}})


def test_only_allowed_tools_are_offered() -> None:
    tools = [TOOL, {"type": "function", "function": {"name": "beta"}}]
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [ALLOWED]}}
    assert [tool.name for tool in read(tools=tools, tool_choice=allowed).request.tools] == ["read"]


def test_parallel_tool_calls_may_be_disabled() -> None:
    assert read(tools=[TOOL], parallel_tool_calls=False).request.single_call
    assert not read(tools=[TOOL], parallel_tool_calls=True).request.single_call
    assert not read(tools=[TOOL]).request.single_call


def test_sampling_fields_are_decoded() -> None:
    chosen = read(temperature=0.5, top_p=1, seed=7, stop="END", max_tokens=9, max_completion_tokens=10).request.sampling
    assert (chosen.temperature, chosen.top_p, chosen.seed) == (0.5, 1, 7)
    assert (chosen.stop, chosen.max_tokens) == (("END",), 10)
    assert read(max_tokens=9.0, stop=["a", "b"]).request.sampling.max_tokens == 9
    assert read(stop=["a", "b"]).request.sampling.stop == ("a", "b")
    assert read().request.sampling.max_tokens is None


@pytest.mark.parametrize(
    ("form", "schema"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "array"}}}, {"type": "array"}),
    ],
)
def test_the_answer_schema_is_decoded(form: Any, schema: Any) -> None:
    assert read(response_format=form).request.answer_schema == schema


def test_stream_options_are_decoded() -> None:
    plain, streamed = read(model="gpt"), read(stream=True, stream_options={"include_usage": True})
    assert (plain.model, plain.stream, plain.counts) == ("gpt", False, False)
    assert (streamed.model, streamed.stream, streamed.counts) == ("", True, True)


def test_unknown_fields_are_ignored() -> None:
    strange = {"role": "user", "content": "Hi", "cache_control": {"type": "ephemeral"}, "name": "me"}
    assert read(strange, n=1, user="u", metadata={}, reasoning_effort="high").request.messages == (User("Hi"),)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"n": 2}, "n must be 1"),
        ({"functions": [{}]}, "use tools"),
        ({"messages": []}, "not a system message"),
        ({"messages": [{"role": "system", "content": "Hi"}]}, "not a system message"),
        ({"messages": "Hi"}, "messages must be a list"),
        ({"messages": ["Hi"]}, r"messages\[0\] must be an object"),
        ({"messages": [{"role": "function", "content": "Hi"}]}, r"messages\[0\].role must be"),
        ({"messages": [{"role": "user", "content": 7}]}, r"messages\[0\].content must be a string or a list"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "'image_url': the model .* reads only text",
        ),
        ({"messages": [{"role": "user", "content": [7]}]}, r"content\[0\] must be an object with a type"),
        ({"messages": [HI, {"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "function must be an object"),
        ({"messages": [HI, {"role": "assistant", "tool_calls": [{"type": "custom"}]}]}, "only functions"),
        (
            {"messages": [HI, {"role": "assistant", "tool_calls": [{"function": {}}]}]},
            "name must be a non-empty string",
        ),
        ({"tools": [{"type": "web_search"}]}, r"tools\[0\] is of type 'web_search'; only functions"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": 1}}]}, "must be a JSON schema"),
        ({"tools": [TOOL], "tool_choice": "perhaps"}, "tool_choice must be"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice must be"),
        (
            {
                "tools": [TOOL],
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
            },
            "must name at least one",
        ),
        ({"response_format": {"type": "yaml"}}, "response_format must be"),
        ({"response_format": {"type": "json_schema"}}, "response_format must be"),
        ({"temperature": "hot"}, "temperature must be a number"),
        ({"temperature": True}, "temperature must be a number"),
        ({"max_tokens": 0}, "max_tokens must be an integer >= 1"),
        ({"max_tokens": 1.5}, "max_tokens must be an integer"),
        ({"seed": 1e300}, "seed must be a number"),
        ({"stop": [1]}, "stop must be a list of strings"),
        ({"model": 1}, "model must be a string"),
    ],
)
def test_an_unsupported_or_invalid_field_is_rejected(body: dict[str, Any], message: str) -> None:
    with pytest.raises(GatewayError, match=message) as raised:
        OpenAIProtocol().read({"messages": [HI], **body})
    assert raised.value.status == 400
