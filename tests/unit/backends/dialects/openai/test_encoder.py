"""How a request looks on the wire, and that its bytes only ever grow at their end."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from batch_agent.backends.dialects.openai.encoder import OpenAIChat
from batch_agent.backends.flavors import OpenAIExtensions
from batch_agent.core.messages import (
    Assistant,
    Message,
    Prompt,
    Thought,
    ToolCall,
    ToolResult,
    ToolResults,
    ToolSpec,
    User,
)
from batch_agent.core.requests import Request, Sampling

LOOK = ToolSpec("look", "Look something up.", {"type": "object", "properties": {"q": {"type": "string"}}})
FIND = ToolSpec("find", "Find it.", {"type": "object", "properties": {}})
CALL = ToolCall("call_1", "look", '{"q":  "spaces stay"}')
STORY: tuple[Message, ...] = (
    User("What is it?"),
    Assistant("", (CALL,), (Thought("thinking"),)),
    ToolResults((ToolResult(CALL, "It is 42."),)),
    Assistant("It is 42."),
)


def request(*messages: Message, system: str = "Be brief.", tools: tuple[ToolSpec, ...] = (LOOK, FIND)) -> Request:
    return Request(Prompt(system, tools), messages or (User("Hi"),), "a-model", Sampling())


def sent(asked: Request, dialect: OpenAIChat | None = None) -> Any:
    return orjson.loads((dialect or OpenAIChat()).encode(asked))


def test_a_system_prompt_and_a_user_message_are_encoded() -> None:
    assert sent(request(tools=())) == {
        "model": "a-model",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    }


def test_without_a_system_prompt_the_first_message_is_the_users() -> None:
    assert sent(request(system="", tools=()))["messages"] == [{"role": "user", "content": "Hi"}]


def test_a_whole_conversation_is_encoded() -> None:
    assert sent(request(*STORY))["messages"][1:] == [
        {"role": "user", "content": "What is it?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": CALL.arguments}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "It is 42."},
        {"role": "assistant", "content": "It is 42."},
    ]


def test_each_result_of_parallel_calls_is_a_message_of_its_own() -> None:
    results = ToolResults(tuple(ToolResult(ToolCall(f"c{n}", "look", "{}"), str(n)) for n in range(3)))
    roles = [message["role"] for message in sent(request(User("Hi"), results))["messages"]]
    assert roles == ["system", "user", "tool", "tool", "tool"]


def test_tools_are_described_in_the_order_that_they_were_given() -> None:
    tools = sent(request())["tools"]
    assert [tool["function"]["name"] for tool in tools] == ["look", "find"]
    assert tools[0] == {
        "type": "function",
        "function": {"name": "look", "description": "Look something up.", "parameters": LOOK.parameters},
    }


def test_on_the_last_turn_the_tools_stay_and_may_not_be_called() -> None:
    asked = request()
    last = sent(replace(asked, may_call_tools=False))
    assert last["tool_choice"] == "none"
    assert last["tools"] == sent(asked)["tools"]
    assert "tool_choice" not in sent(asked)
    assert "tool_choice" not in sent(replace(request(tools=()), may_call_tools=False))


def test_a_forced_call_is_encoded_after_the_shared_prefix() -> None:
    asked = request()
    named, any_of_them = replace(asked, must_call="find"), replace(asked, must_call="")
    assert sent(named)["tool_choice"] == {"type": "function", "function": {"name": "find"}}
    assert sent(any_of_them)["tool_choice"] == "required"
    assert sent(named)["tools"] == sent(asked)["tools"]
    plain = OpenAIChat().encode(asked)
    assert OpenAIChat().encode(named).startswith(plain[:-1])
    assert sent(replace(named, may_call_tools=False))["tool_choice"] == "none"
    assert "tool_choice" not in sent(replace(request(tools=()), must_call="find"))


def test_only_the_given_sampling_fields_are_sent() -> None:
    sampling = Sampling(temperature=0.0, seed=7, max_tokens=20, stop=("END",), extra={"top_k": 3})
    dialect = OpenAIChat(OpenAIExtensions(max_tokens_field="max_completion_tokens"))
    body = sent(replace(request(tools=()), sampling=sampling), dialect)
    del body["messages"]
    assert body == {
        "model": "a-model",
        "temperature": 0.0,
        "seed": 7,
        "stop": ["END"],
        "max_completion_tokens": 20,
        "top_k": 3,
    }


def test_a_schema_is_sent_with_its_name_and_a_stream_requests_usage() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    body = sent(replace(request(), answer_schema=schema, stream=True))
    assert body["response_format"] == {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}


def test_the_shared_prompt_of_a_run_is_serialized_once() -> None:
    dialect = OpenAIChat()
    tool = ToolSpec("look", "", {"type": "object"})
    asked = request(tools=(tool,))
    first = dialect.encode(asked)
    # Changing the data behind an encoded prompt must not show: nobody reads it again.
    tool.parameters["changed"] = True  # type: ignore[index]
    assert dialect.encode(replace(asked, messages=(User("Hi"),))) == first


def test_another_run_on_the_same_dialect_gets_its_own_bytes() -> None:
    dialect = OpenAIChat()
    for number in range(50):  # short-lived objects: an id may come back
        asked = request(system=f"Run {number}", tools=())
        assert sent(asked, dialect)["messages"][0]["content"] == f"Run {number}"


@pytest.mark.parametrize("text", ["\ud800", "a\udcffb", 'quote " and \\ and \n', "\0", "é\U0001f600"])
def test_any_text_can_be_sent_even_invalid_unicode(text: str) -> None:
    call = ToolCall("c", "look", text)
    asked = request(User(text), Assistant(text, (call,)), ToolResults((ToolResult(call, text),)), system="s")
    messages = sent(asked)["messages"]
    assert messages[1]["content"] == text.encode(errors="replace").decode()


def test_a_system_prompt_with_invalid_unicode_can_be_sent() -> None:
    assert sent(request(system="a\ud800b"))["messages"][0]["content"] == "a?b"


def test_a_schema_may_be_adapted_for_the_server() -> None:
    asked = replace(request(), answer_schema={"type": "string"})
    body = sent(asked, OpenAIChat(adapt_schema=lambda schema: {**schema, "maxLength": 9}))
    assert body["response_format"]["json_schema"]["schema"] == {"type": "string", "maxLength": 9}
