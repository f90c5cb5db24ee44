"""How a request looks in Anthropic's format, what is cached of it, and that its bytes only ever grow at their end."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from batch_agent.backends.dialects.anthropic.encoder import AnthropicMessages
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
CALL = ToolCall("toolu_1", "look", '{"q":  "spaces stay"}')
CACHED = {"type": "ephemeral"}


def request(
    *messages: Message, system: str = "Be brief.", tools: tuple[ToolSpec, ...] = (LOOK, FIND), **sampling: Any
) -> Request:
    return Request(Prompt(system, tools), messages or (User("Hi"),), "a-model", Sampling(**sampling))


def sent(asked: Request, dialect: AnthropicMessages | None = None) -> Any:
    return orjson.loads((dialect or AnthropicMessages()).encode(asked))


def said(message: Message, dialect: AnthropicMessages | None = None) -> Any:
    return sent(request(message), dialect)["messages"][0]["content"]


def test_a_single_user_message_is_encoded() -> None:
    assert sent(request(tools=())) == {
        "model": "a-model",
        "max_tokens": 8192,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": CACHED}],
        "messages": [{"role": "user", "content": "Hi"}],
    }


def test_the_request_path_is_messages_without_extra_headers() -> None:
    dialect = AnthropicMessages()
    assert dialect.path(request()) == "/messages"
    assert dialect.headers(request()) is None


def test_a_whole_conversation_is_encoded() -> None:
    thought = Thought("Hm.", "signed")
    story = (
        User("What is it?"),
        Assistant("I look.", (CALL,), (thought,)),
        ToolResults((ToolResult(CALL, "It is 42."),)),
        Assistant("It is 42."),
    )
    assert sent(request(*story))["messages"] == [
        {"role": "user", "content": "What is it?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "signed"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"q": "spaces stay"}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "It is 42."}]},
        {"role": "assistant", "content": [{"type": "text", "text": "It is 42."}]},
    ]


def test_the_arguments_of_a_call_come_back_byte_for_byte() -> None:
    call = ToolCall("c", "look", ' {"b": 1.0,\n "a": 1e3, "big": 123456789012345678901234567890} ')
    assert call.arguments.encode() in AnthropicMessages().encode(request(Assistant("", (call,))))


@pytest.mark.parametrize("arguments", ["", "{", "[1]", "7", "null", '"text"', "{} {}", '{"a": NaN}', '{"\ud800'])
def test_arguments_that_are_not_an_object_are_encoded_as_data(arguments: str) -> None:
    [block] = said(Assistant("", (ToolCall("c", "look", arguments),)))
    assert block["input"] == {"malformed": arguments.encode(errors="replace").decode()}


def test_tool_results_of_a_turn_are_one_message_and_failures_are_marked() -> None:
    calls = [ToolCall(f"c{n}", "look", "{}") for n in range(2)]
    results = ToolResults((ToolResult(calls[0], "fine"), ToolResult(calls[1], "broken", is_error=True)))
    assert sent(request(User("Hi"), results))["messages"][1:] == [
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c0", "content": "fine"},
                {"type": "tool_result", "tool_use_id": "c1", "content": "broken", "is_error": True},
            ],
        }
    ]


def test_user_text_after_a_tool_result_is_a_separate_message() -> None:
    story = (ToolResults((ToolResult(CALL, "42"),)), User("Go on."), User("Please."))
    assert [message["content"] for message in sent(request(*story))["messages"][1:]] == ["Go on.", "Please."]


@pytest.mark.parametrize("foreign", ["functions.look:0", "a b", "id\n", "é", "\ud800", ""])
def test_an_invalid_call_id_is_replaced_equally_in_call_and_result(foreign: str) -> None:
    call = ToolCall(foreign, "look", "{}")
    asked, answered = sent(request(Assistant("", (call,)), ToolResults((ToolResult(call, "x"),))))["messages"]
    id = asked["content"][0]["id"]
    assert id == answered["content"][0]["tool_use_id"]
    assert id.isascii()
    assert id.replace("_", "").replace("-", "").isalnum()


def test_replaced_call_ids_stay_unique() -> None:
    calls = tuple(ToolCall(id, "look", "{}") for id in ("a.1", "a:1", "a_1"))
    assert len({block["id"] for block in said(Assistant("", calls))}) == 3


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
def test_blank_text_is_omitted_next_to_calls_and_marked_as_empty_otherwise(text: str) -> None:
    assert [block["type"] for block in said(Assistant(text, (CALL,)))] == ["tool_use"]
    assert said(Assistant(text)) == [{"type": "text", "text": "(empty)"}]


def test_a_message_does_not_end_with_reasoning() -> None:
    assert [block["type"] for block in said(Assistant("", (), (Thought("Hm.", "s"),)))] == ["thinking", "text"]


def test_signed_and_redacted_reasoning_is_sent_back_unchanged() -> None:
    thoughts = (Thought("Hm.", "s1"), Thought(redacted="secret"), Thought("", "s2"))
    assert said(Assistant("Hi", (), thoughts), AnthropicMessages(strict_schema=True))[:3] == [
        {"type": "thinking", "thinking": "Hm.", "signature": "s1"},
        {"type": "redacted_thinking", "data": "secret"},
        {"type": "thinking", "thinking": "", "signature": "s2"},
    ]


def test_unsigned_reasoning_is_sent_only_to_a_server_without_signatures() -> None:
    message = Assistant("Hi", (), (Thought("Hm."), Thought()))
    assert [block["type"] for block in said(message, AnthropicMessages(strict_schema=True))] == ["text"]
    assert said(message)[:-1] == [{"type": "thinking", "thinking": "Hm.", "signature": ""}]


def test_tools_are_described_in_the_order_that_they_were_given() -> None:
    tools = sent(request())["tools"]
    assert [tool["name"] for tool in tools] == ["look", "find"]
    assert tools[0] == {"name": "look", "description": "Look something up.", "input_schema": LOOK.parameters}


def test_the_schema_of_a_tool_has_the_type_object() -> None:
    [tool] = sent(request(tools=(ToolSpec("look", "", {"properties": {}}),)))["tools"]
    assert tool["input_schema"] == {"type": "object", "properties": {}}


def test_the_shared_prefix_is_cached_up_to_its_last_block() -> None:
    both = sent(request())
    assert both["system"][-1]["cache_control"] == CACHED
    assert not any("cache_control" in tool for tool in both["tools"])
    for system in ("", " \n"):
        only_tools = sent(request(system=system))
        assert "system" not in only_tools
        assert ["cache_control" in tool for tool in only_tools["tools"]] == [False, True]
    assert b"cache_control" not in AnthropicMessages().encode(request(system="", tools=()))


def test_a_conversation_is_cached_only_while_it_goes_on() -> None:
    assert sent(request())["cache_control"] == CACHED
    assert "cache_control" not in sent(request(tools=()))
    assert "cache_control" not in sent(replace(request(), may_call_tools=False))


def test_the_cache_ttl_option_applies_to_both_cache_marks() -> None:
    for_an_hour = {"type": "ephemeral", "ttl": "1h"}
    body = sent(request(extra={"cache_control": for_an_hour}))
    assert body["cache_control"] == for_an_hour
    assert body["system"][0]["cache_control"] == for_an_hour


def test_a_cache_salt_is_sent_only_to_servers_that_support_it() -> None:
    asked = replace(request(), prompt=Prompt("Be brief.", cache_salt="mine"))
    assert sent(asked)["cache_salt"] == "mine"
    assert "cache_salt" not in sent(asked, AnthropicMessages(strict_schema=True))
    assert "cache_salt" not in sent(request())


def test_on_the_last_turn_the_tools_stay_and_may_not_be_called() -> None:
    asked = request()
    last = sent(replace(asked, may_call_tools=False))
    assert last["tool_choice"] == {"type": "none"}
    assert last["tools"] == sent(asked)["tools"]
    assert "tool_choice" not in sent(asked)
    assert "tool_choice" not in sent(replace(request(tools=()), may_call_tools=False))


def test_a_forced_call_is_encoded_after_the_shared_prefix() -> None:
    dialect, asked = AnthropicMessages(), request()
    named, any_of_them = replace(asked, must_call="find"), replace(asked, must_call="")
    assert sent(named, dialect)["tool_choice"] == {"type": "tool", "name": "find"}
    assert sent(any_of_them, dialect)["tool_choice"] == {"type": "any"}
    assert sent(named, dialect)["tools"] == sent(asked, dialect)["tools"]
    assert "tool_choice" not in sent(asked, dialect)
    shared = dialect.encode(asked).partition(b'],"cache_control"')[0]
    assert dialect.encode(named).startswith(shared)
    assert sent(replace(named, may_call_tools=False))["tool_choice"] == {"type": "none"}


def test_sampling_has_the_names_of_the_messages_api_and_no_seed() -> None:
    thinking = {"type": "enabled", "budget_tokens": 2048}
    body = sent(
        request(
            tools=(),
            system="",
            temperature=0.0,
            top_p=0.5,
            seed=7,
            max_tokens=20,
            stop=("END",),
            extra={"thinking": thinking, "metadata": {"user_id": "u"}},
        )
    )
    del body["messages"]
    assert body == {
        "model": "a-model",
        "max_tokens": 20,
        "temperature": 0.0,
        "top_p": 0.5,
        "stop_sequences": ["END"],
        "thinking": thinking,
        "metadata": {"user_id": "u"},
    }


@pytest.mark.parametrize(("longest", "limit"), [(None, 8192), (4096, 4096), (64000, 8192)])
def test_an_answer_is_always_limited(longest: int | None, limit: int) -> None:
    dialect = AnthropicMessages(max_output_tokens=longest)
    assert sent(request(), dialect)["max_tokens"] == limit
    assert sent(request(max_tokens=32000), dialect)["max_tokens"] == 32000


def test_a_schema_and_a_stream_are_requested() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3}}}
    asked = replace(request(extra={"output_config": {"effort": "low"}}), answer_schema=schema, stream=True)
    body = sent(asked)
    assert body["output_config"] == {"effort": "low", "format": {"type": "json_schema", "schema": schema}}
    assert body["stream"] is True
    assert "stream" not in sent(request())
    assert sent(replace(asked, answer_schema=None))["output_config"] == {"effort": "low"}


def test_anthropic_gets_the_schema_in_its_strict_form_where_there_is_one() -> None:
    limited = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3}}}
    open_ended = {"type": "object", "additionalProperties": {"type": "integer"}}
    dialect = AnthropicMessages(strict_schema=True)
    assert sent(replace(request(), answer_schema=limited), dialect)["output_config"]["format"]["schema"] == {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    kept = sent(replace(request(), answer_schema=open_ended), dialect)["output_config"]["format"]["schema"]
    assert kept == open_ended


def test_no_field_is_repeated_whatever_the_user_adds() -> None:
    extra = {
        "tool_choice": {"type": "any"},
        "output_config": {"effort": "low"},
        "cache_control": CACHED,
        "stream": False,
    }
    last = replace(request(extra=extra), may_call_tools=False, answer_schema={"type": "object"}, stream=True)
    for asked in (last, replace(last, may_call_tools=True, stream=False)):
        encoded = AnthropicMessages().encode(asked)
        for name in (b"tool_choice", b"output_config", b"stream"):
            assert encoded.count(b'"%b":' % name) == 1
    assert sent(last)["tool_choice"] == {"type": "none"}
    assert sent(replace(last, may_call_tools=True))["tool_choice"] == {"type": "any"}


def test_the_shared_prompt_of_a_run_is_serialized_once() -> None:
    dialect = AnthropicMessages()
    tool = ToolSpec("look", "", {"type": "object"})
    schema = {"type": "object"}
    asked = replace(request(tools=(tool,)), answer_schema=schema)
    first = dialect.encode(asked)
    # Changing the data behind an encoded prompt must not show: nobody reads it again.
    tool.parameters["changed"] = True  # type: ignore[index]
    schema["changed"] = "too"
    assert dialect.encode(replace(asked, messages=(User("Hi"),))) == first


def test_another_run_on_the_same_dialect_gets_its_own_bytes() -> None:
    dialect = AnthropicMessages()
    for number in range(50):  # short-lived objects: an id may come back
        asked = request(system=f"Run {number}", extra={"metadata": {"user_id": str(number)}, "stream": number})
        body = sent(asked, dialect)
        assert body["system"][0]["text"] == f"Run {number}"
        assert body["metadata"] == {"user_id": str(number)}
        assert body["stream"] == number


def test_any_difference_between_requests_of_a_run_is_in_their_bytes() -> None:
    dialect = AnthropicMessages()
    asked = request()
    others = [
        replace(asked, model="b-model"),
        replace(asked, sampling=Sampling(temperature=0.5)),
        replace(asked, sampling=Sampling(extra={"tool_choice": {"type": "any"}})),
        replace(asked, answer_schema={"type": "object"}),
        replace(asked, may_call_tools=False),
        replace(asked, stream=True),
        replace(asked, prompt=Prompt("Be long.")),
    ]
    dialect.encode(asked)
    for other in others:
        assert dialect.encode(other) == AnthropicMessages().encode(other)


@pytest.mark.parametrize("text", ["\ud800", "a\udcffb", 'quote " and \\ and \n', "\0", "é\U0001f600"])
def test_any_text_can_be_sent_even_invalid_unicode(text: str) -> None:
    call = ToolCall("c", text, text)
    body = sent(
        request(
            User(text),
            Assistant(text, (call,), (Thought(text, text),)),
            ToolResults((ToolResult(call, text),)),
            system=text + "!",
        )
    )
    readable = text.encode(errors="replace").decode()
    assert body["system"][0]["text"] == readable + "!"
    user, assistant, results = body["messages"]
    assert user["content"] == readable
    assert [block.get("text") for block in assistant["content"]] == [None, readable, None]
    assert assistant["content"][2]["input"] == {"malformed": readable}
    assert results["content"][0]["content"] == readable
