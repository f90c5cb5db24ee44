import json
from typing import Any

import pytest

from batch_agent.sim.answer import SimAnswer, reply_of
from batch_agent.sim.answer_script import AnswerScript, DirectiveError
from batch_agent.sim.faults import Kind
from batch_agent.sim.sim_config import FaultRates, Script
from batch_agent.sim.tokens import render_chat


def tool(name: str = "search") -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def called(name: str = "search", times: int = 1) -> list[dict[str, Any]]:
    call = {"id": "1", "type": "function", "function": {"name": name, "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call] * times},
        *[{"role": "tool", "tool_call_id": "1", "content": "found"}] * times,
    ]


def ask(messages: list[dict[str, Any]], script: Script | None = None, **more: Any) -> SimAnswer:
    body = {"messages": messages, **more}
    return AnswerScript(script or Script(), FaultRates()).chat(body, render_chat(messages, more.get("tools")))


def length(answer: SimAnswer) -> int:
    return reply_of(answer, max_tokens=1000).tokens


def schema_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "r", "schema": schema}}


def test_without_tools_or_schema_it_is_text_of_the_given_length() -> None:
    answer = ask([user("hi")], Script(answer_tokens=10))
    assert length(answer) == 10
    assert answer == ask([user("hi")], Script(answer_tokens=10))
    assert answer != ask([user("ho")], Script(answer_tokens=10))
    assert answer != ask([user("hi")], Script(answer_tokens=10, seed=1))


def test_it_calls_a_tool_first_and_answers_then() -> None:
    first = ask([user("hi")], tools=[tool()])
    assert [call.name for call in first.calls] == ["search"]
    assert json.loads(first.calls[0].arguments)["q"].startswith("key-")
    assert not ask([user("hi"), *called()], tools=[tool()]).calls


def test_it_calls_for_as_many_turns_as_the_script_says_however_many_calls_a_turn_has() -> None:
    script = Script(tool_turns=2, parallel_calls=3)
    messages = [user("hi")]
    keys = []
    for _ in range(2):
        answer = ask(messages, script, tools=[tool()])
        assert len(answer.calls) == 3
        keys += [call.arguments for call in answer.calls]
        messages += called(times=3)
    assert not ask(messages, script, tools=[tool()]).calls
    assert len(set(keys)) == 6


def test_many_agents_share_a_few_keys() -> None:
    asked = {ask([user(f"item {n}")], Script(keys=3), tools=[tool()]).calls[0].arguments for n in range(50)}
    assert asked == {f'{{"q":"key-{n}"}}' for n in range(3)}


def test_tool_choice_is_obeyed() -> None:
    tools = [tool("a"), tool("b")]
    assert not ask([user("hi")], tools=tools, tool_choice="none").calls
    assert ask([user("hi"), *called()], tools=tools, tool_choice="required").calls
    named = ask([user("hi")], tools=tools, tool_choice={"type": "function", "function": {"name": "b"}})
    assert named.calls[0].name == "b"


def test_a_schema_is_filled_once_the_tools_were_used() -> None:
    form = schema_format({"type": "object", "properties": {"score": {"type": "integer", "minimum": 0, "maximum": 9}}})
    assert ask([user("hi")], tools=[tool()], response_format=form).calls
    final = ask([user("hi"), *called()], tools=[tool()], response_format=form)
    assert 0 <= json.loads(final.text)["score"] <= 9


@pytest.mark.parametrize(
    "field",
    [
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"json": {"type": "object"}}},
        {"guided_json": {"type": "object"}},
    ],
    ids=str,
)
def test_every_way_to_ask_for_json_gives_json(field: dict[str, Any]) -> None:
    assert isinstance(json.loads(ask([user("hi")], **field).text), dict)


def test_an_action_schema_is_first_a_call_and_then_the_end() -> None:
    arguments = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    call = {"type": "object", "properties": {"tool": {"const": "search"}, "arguments": {"$ref": "#/$defs/A"}}}
    call["required"] = ["tool", "arguments"]
    end = {"type": "object", "properties": {"final": {"type": "string"}}, "required": ["final"]}
    form = schema_format({"anyOf": [end, call], "$defs": {"A": arguments}})
    first = json.loads(ask([user("hi")], response_format=form).text)
    assert first["tool"] == "search"
    assert first["arguments"]["q"].startswith("key-")
    history = [user("hi"), {"role": "assistant", "content": json.dumps(first)}, user("result: 1")]
    assert json.loads(ask(history, response_format=form).text).keys() == {"final"}


def test_a_directive_decides_the_reply() -> None:
    assert ask([user('do it [[sim: {"text": "exactly ]] this"}]] now')]).text == "exactly ]] this"
    assert ask([user('[[sim: {"json": {"a": [1]}}]]')]).text == '{"a": [1]}'
    calls = ask(
        [user('[[sim: {"calls": [{"name": "x", "arguments": {"a": 1}}, {"name": "y", "arguments": "{bad"}]}]]')]
    )
    assert [(call.name, call.arguments) for call in calls.calls] == [("x", '{"a": 1}'), ("y", "{bad")]
    assert length(ask([user('[[sim: {"tokens": 7}]]')])) == 7


def test_a_directive_is_for_one_answer_and_a_list_for_as_many() -> None:
    one = [user('[[sim: {"calls": [{"name": "x"}]}]]')]
    assert ask(one).calls
    assert not ask([*one, *called("x")]).calls
    many = [user('[[sim: [{"text": "a"}, {"text": "b"}]]]')]
    said = {"role": "assistant", "content": "..."}
    assert ask(many).text == "a"
    assert ask([*many, said, user("that was wrong")]).text == "b"
    assert length(ask([*many, said, user("again"), said, user("again")])) == 64


def test_a_directive_inside_a_json_value_is_read_too() -> None:
    assert ask([user(json.dumps({"item": '[[sim: {"text": "quoted \\" too"}]]'}))]).text == 'quoted " too'


@pytest.mark.parametrize("text", ["[[sim: {nope}]]", '[[sim: {"txt": 1}]]', '[[sim: {"fault": "fire"}]]', "[[sim: 5]]"])
def test_a_directive_that_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises(DirectiveError):
        ask([user(text)])


def test_a_directive_can_order_a_fault_for_some_attempts() -> None:
    order = ask([user('[[sim: {"fault": "429", "times": 2, "retry_after_s": 0.5}]]')]).fault
    assert order is not None
    assert (order.times, order.fault.kind, order.fault.status, order.fault.retry_after_s) == (2, Kind.STATUS, 429, 0.5)


def test_a_schema_in_the_system_prompt_is_filled_after_the_tools() -> None:
    schema = {"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"]}
    said = f"Be brief.\n\nAnswer with JSON only. It must fit this JSON schema:\n{json.dumps(schema)}"
    messages = [{"role": "system", "content": said}, user("hi")]
    assert ask(messages, tools=[tool()]).calls
    assert list(json.loads(ask([*messages, *called()], tools=[tool()]).text)) == ["score"]
    assert list(json.loads(ask(messages).text)) == ["score"]
    with_prose = [{"role": "system", "content": "It must fit this JSON schema:\nsee above"}, user("hi")]
    assert ask(with_prose).text.startswith(tuple("abcdefghijklmnopqrstuvwxyz "))
