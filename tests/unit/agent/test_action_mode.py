"""In action mode a turn is one JSON object: a tool call or the final answer."""

import pytest

from batch_agent.agent.action_mode import FinalAction, read_action, show_results
from batch_agent.core.agent_config import InvalidOutput
from batch_agent.core.json import dumps_ascii
from batch_agent.core.messages import ToolCall, ToolResult

CALL = '{"tool": "look", "arguments": {"at": "é"}}'


@pytest.mark.parametrize(
    "text",
    [
        CALL,
        f"I will look.\n```json\n{CALL}\n```",
        f"<think>hm</think>{CALL}",
        "{'tool': 'look', 'arguments': {'at': 'é'},}",
        '{"tool": "look", "arguments": "{\\"at\\":\\"é\\"}"}',
        f'{CALL}\nResult: a cat\n{{"final": "a cat"}}',
        f'{CALL} {{"tool": "other", "arguments": {{}}}}',
        f'```json\n{CALL}\n```\nReturned: cat\n```json\n{{"final": "cat"}}\n```',
    ],
)
def test_the_first_action_is_a_call(text: str) -> None:
    assert read_action(text, "id") == ToolCall("id", "look", '{"at":"é"}')


@pytest.mark.parametrize("arguments", ["", ', "arguments": {}', ', "arguments": null', ', "arguments": ""'])
def test_a_call_without_arguments_has_none(arguments: str) -> None:
    assert read_action(f'{{"tool": "look"{arguments}}}', "id") == ToolCall("id", "look", "{}")


def test_arguments_that_are_not_an_object_are_passed_to_the_tool() -> None:
    assert read_action('{"tool": "look", "arguments": [1]}', "id") == ToolCall("id", "look", "[1]")
    assert read_action('{"tool": "look", "arguments": "nonsense"}', "id") == ToolCall("id", "look", "nonsense")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"final": "x"}', "x"),
        ('{"final": {"a": [1]}}', {"a": [1]}),
        ('{"final": null}', None),
        ('So: {"final": 5} because', 5),
        ('{"thought": "known", "final": 1}', 1),
        ('{"tool": null, "final": 1}', 1),
        ('{"final": 1} {"tool": "look"}', 1),
    ],
)
def test_a_final_action_is_the_answer(text: str, value: object) -> None:
    assert read_action(text, "id") == FinalAction(value)


@pytest.mark.parametrize("text", ["", "look", '{"name": "look"}', '[{"final": 1}]', '{"tool": 5}', '"final"', "{}"])
def test_an_invalid_action_is_answered_with_the_expected_format(text: str) -> None:
    with pytest.raises(
        InvalidOutput, match=r'one JSON object, \{"tool": ..., "arguments": \{...\}\} or \{"final": ...\}'
    ):
        read_action(text, "id")


def test_in_a_truncated_text_only_a_complete_action_is_read() -> None:
    assert read_action(CALL, "id", is_whole=False) == ToolCall("id", "look", '{"at":"é"}')
    for text in (CALL[:-1], CALL[:-3], "{'final': 1}", '{"final": "x', '{"a": 1} {"final": "x'):
        with pytest.raises(InvalidOutput):
            read_action(text, "id", is_whole=False)


def test_tool_results_are_shown_with_their_tool_and_outcome() -> None:
    look, find = ToolCall("1", "look", "{}"), ToolCall("2", "find", "{}")
    shown = show_results((ToolResult(look, "a cat"), ToolResult(find, "no such thing", is_error=True)))
    assert shown == "Result of look: a cat\n\nError of find: no such thing"


def test_arguments_with_lone_surrogates_can_be_stored() -> None:
    assert dumps_ascii({"a": "é"}) == '{"a":"é"}'
    assert dumps_ascii({"a": 2**70}) == '{"a": 1180591620717411303424}'
    assert dumps_ascii({"a": "\ud800"}) == '{"a": "\\ud800"}'
    text = '{"tool": "look", "arguments": {"at": "\\ud800", "n": 1180591620717411303424}}'
    action = read_action(text, "id")
    assert isinstance(action, ToolCall)
    assert action.arguments.encode() == b'{"at": "\\ud800", "n": 1180591620717411303424}'
