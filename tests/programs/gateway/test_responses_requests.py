"""Parsing of requests in OpenAI's responses API."""

from typing import Any

import pytest

from batch_agent.core.messages import Assistant, Message, Thought, ToolCall, ToolResult, ToolResults, ToolSpec, User
from batch_agent.core.program_runtime import CompletionRequest
from batch_agent.programs.gateway.api_protocol import ParsedRequest
from batch_agent.programs.gateway.gateway_error import GatewayError
from batch_agent.programs.gateway.responses_protocol import ResponsesProtocol

IMAGE = {"type": "input_image", "image_url": "data:"}
HI = {"role": "user", "content": "Hi"}
READ = ToolCall("c1", "read", '{"path": "a"}')
CALL = {"type": "function_call", "call_id": "c1", "name": "read", "arguments": '{"path": "a"}'}
TOOL = {"type": "function", "name": "read", "description": "Reads.", "parameters": {"type": "object"}}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Patches."}
SEARCH = {"type": "web_search", "external_web_access": True}


def read(*items: Any, **body: Any) -> CompletionRequest:
    return parse(*items, **body).request


def parse(*items: Any, **body: Any) -> ParsedRequest:
    return ResponsesProtocol().read({"input": list(items) or [HI], **body})


def said(role: str, text: str, kind: str = "input_text") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def test_an_input_that_is_text_is_a_message_of_the_user() -> None:
    request = ResponsesProtocol().read({"input": "Hi", "instructions": "Be brief."}).request
    assert (request.system, request.messages) == ("Be brief.", (User("Hi"),))


def test_instructions_and_system_messages_at_the_beginning_are_the_system_prompt() -> None:
    request = read(said("developer", "Be exact."), said("system", "Be kind."), HI, instructions="Be brief.")
    assert request.system == "Be brief.\n\nBe exact.\n\nBe kind."
    assert request.messages == (User("Hi"),)


def test_a_later_system_message_does_not_change_the_prefix() -> None:
    request = read(HI, said("developer", "Stop."), HI)
    assert request.messages == (User("Hi"), User("<system>\nStop.\n</system>"), User("Hi"))
    assert request.system == ""


def test_reasoning_text_and_calls_in_a_row_are_one_turn_of_the_model() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    other = {**CALL, "call_id": "c2", "name": "list", "arguments": ""}
    outputs = [{"type": "function_call_output", "call_id": name, "output": name} for name in ("c2", "c1")]
    request = read(HI, thought, said("assistant", "Look.", "output_text"), CALL, other, *outputs)
    listed = ToolCall("c2", "list", "")
    assert request.messages[1:] == (
        Assistant("Look.", (READ, listed), (Thought("Hm."),)),
        ToolResults((ToolResult(listed, "c2"), ToolResult(READ, "c1"))),
    )


def test_text_or_reasoning_after_a_call_begins_the_next_turn_of_the_model() -> None:
    done = {"role": "assistant", "content": "Done."}
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
    request = read(HI, CALL, done, thought, done)
    turns: list[Message] = [Assistant("", (READ,)), Assistant("Done."), Assistant("Done.", (), (Thought("Hm."),))]
    assert request.messages[1:] == tuple(turns)


def test_encrypted_reasoning_is_a_signature_or_the_thought_itself() -> None:
    text = [{"type": "reasoning_text", "text": "Hm."}]
    signed = {"type": "reasoning", "summary": [], "content": text, "encrypted_content": "s"}
    closed: dict[str, Any] = {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "d"}
    request = read(HI, signed, closed, CALL)
    assert request.messages[1] == Assistant("", (READ,), (Thought("Hm.", "s"), Thought(redacted="d")))


def test_an_image_in_an_output_is_described_and_an_output_of_an_unknown_call_is_text() -> None:
    parts = [{"type": "input_text", "text": "two"}, IMAGE]
    outputs = [{"type": "function_call_output", "call_id": name, "output": parts} for name in ("c1", "lost")]
    request = read(HI, CALL, *outputs)
    text = "two\n[input_image: left out, the model reads texts only]"
    stray = User(f"[The result of an earlier tool call]\n{text}")
    assert request.messages[2:] == (ToolResults((ToolResult(READ, text),)), stray)


def test_functions_are_offered_and_servers_tools_are_left_out() -> None:
    parsed = parse(tools=[TOOL, SEARCH, {"type": "function", "name": "bare"}])
    assert parsed.request.tools == (
        ToolSpec("read", "Reads.", {"type": "object"}),
        ToolSpec("bare", "", {"type": "object", "properties": {}}),
    )
    assert parsed.body["tools"][1] == SEARCH


def test_a_custom_tool_is_a_function_with_its_input_and_the_model_reads_its_grammar() -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": "start: begin end"}
    [plain, patch] = read(tools=[PATCH, {**PATCH, "name": "edit", "format": form}]).tools
    assert (plain.name, plain.description, list(plain.parameters["properties"])) == (
        "apply_patch",
        "Patches.",
        ["input"],
    )
    assert patch.description == "Patches.\n\nThe input must match this lark grammar:\nstart: begin end"


def test_calls_of_custom_tools_and_of_the_local_shell_are_decoded() -> None:
    patch = {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin"}
    shell = {
        "type": "local_shell_call",
        "call_id": "c2",
        "action": {"type": "exec", "command": ["ls"], "env": {}, "timeout_ms": None},
    }
    outputs = [
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "one"},
        {"type": "local_shell_call_output", "id": "c2", "output": "two"},
    ]
    request = read(HI, patch, shell, *outputs, tools=[PATCH, {"type": "local_shell"}])
    calls = (
        ToolCall("c1", "apply_patch", '{"input":"*** Begin"}'),
        ToolCall("c2", "local_shell", '{"command":["ls"]}'),
    )
    results = ToolResults((ToolResult(calls[0], "one"), ToolResult(calls[1], "two")))
    assert request.messages[1:] == (Assistant("", calls), results)
    assert [tool.name for tool in request.tools] == ["apply_patch", "local_shell"]


def test_tools_of_a_namespace_have_its_name_before_theirs() -> None:
    tools = [{"type": "namespace", "name": "files", "description": "Of files.", "tools": [TOOL]}, TOOL]
    request = read(HI, {**CALL, "namespace": "files"}, tools=tools)
    assert [tool.name for tool in request.tools] == ["files__read", "read"]
    assert request.messages[1] == Assistant("", (ToolCall("c1", "files__read", '{"path": "a"}'),))


def test_tools_that_the_input_adds_are_offered() -> None:
    late = {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "late"}]}
    request = read(HI, late, tools=[TOOL])
    assert [tool.name for tool in request.tools] == ["read", "late"]
    assert request.messages == (User("Hi"),)


@pytest.mark.parametrize(
    ("choice", "meant", "name"),
    [
        (None, "auto", ""),
        ("auto", "auto", ""),
        ("none", "none", ""),
        ("required", "required", ""),
        ({"type": "function", "name": "read"}, "required", "read"),
        ({"type": "custom", "name": "apply_patch"}, "required", "apply_patch"),
        ({"type": "local_shell"}, "required", "local_shell"),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "read"}]},
            "required",
            "",
        ),
    ],
)
def test_tool_choice_is_decoded(choice: Any, meant: str, name: str) -> None:
    request = read(tools=[TOOL, PATCH, {"type": "local_shell"}, SEARCH], tool_choice=choice)
    assert (request.tool_choice, request.tool_name) == (meant, name)
    assert len(request.tools) == (1 if isinstance(choice, dict) and "mode" in choice else 3)
    assert read(tools=[SEARCH], tool_choice=choice).tool_choice == "auto"


def test_parallel_tool_calls_may_be_disabled() -> None:
    assert read(tools=[TOOL], parallel_tool_calls=False).single_call
    assert not read(tools=[TOOL], parallel_tool_calls=True).single_call
    assert not read(tools=[TOOL]).single_call


def test_sampling_fields_are_decoded() -> None:
    chosen = read(temperature=0.5, top_p=1, max_output_tokens=9).sampling
    assert (chosen.temperature, chosen.top_p, chosen.max_tokens) == (0.5, 1, 9)


@pytest.mark.parametrize(
    ("form", "schema"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_schema", "name": "a", "schema": {"type": "array"}}, {"type": "array"}),
    ],
)
def test_the_answer_schema_is_decoded(form: Any, schema: Any) -> None:
    assert read(text={"format": form, "verbosity": "low"}).answer_schema == schema
    assert read(text=None).answer_schema is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"previous_response_id": "resp_1"},
            "previous_response_id is not supported: this gateway stores nothing. Send",
        ),
        ({"conversation": "conv_1"}, "conversation is not supported"),
        ({"background": True}, "background is not supported"),
        ({"input": []}, "not a system message"),
        ({"input": None}, "not a system message"),
        ({"input": 7}, "input must be a list"),
        ({"input": ["Hi"]}, r"input\[0\] must be an object"),
        ({"input": [{"role": "tool", "content": "Hi"}]}, r"input\[0\].role must be"),
        ({"input": [{"type": "item_reference", "id": "rs_1"}]}, "'item_reference', which is not supported"),
        (
            {"input": [{"role": "user", "content": [IMAGE]}]},
            "'input_image': the model .* reads only text",
        ),
        ({"input": [HI, {"type": "function_call", "call_id": "c1"}]}, "name must be a non-empty string"),
        ({"tools": [{"name": "read"}]}, r"tools\[0\].type must be a string"),
        ({"tools": [{"type": "function", "name": "a", "parameters": 1}]}, "must be a JSON schema"),
        ({"tools": [TOOL], "tool_choice": "perhaps"}, "tool_choice must be"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "beta"}}, "names 'beta', which is not among"),
        ({"tools": [SEARCH], "tool_choice": {"type": "web_search"}}, "a tool that only OpenAI's servers run"),
        (
            {"tools": [TOOL, SEARCH], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [SEARCH]}},
            "at least one tool that the program runs",
        ),
        ({"text": {"format": {"type": "grammar"}}}, "text.format must be"),
        ({"max_output_tokens": 0}, "max_output_tokens must be an integer >= 1"),
        ({"model": 1}, "model must be a string"),
    ],
)
def test_an_unsupported_or_invalid_field_is_rejected(body: dict[str, Any], message: str) -> None:
    with pytest.raises(GatewayError, match=message) as raised:
        ResponsesProtocol().read({"input": [HI], **body})
    assert raised.value.status == 400
