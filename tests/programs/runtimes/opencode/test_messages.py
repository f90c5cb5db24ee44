"""What OpenCode tells, as it tells it."""

import json
from typing import Any

import pytest

from batch_agent.core.messages import Assistant, Thought, ToolResults, User
from batch_agent.core.program_runtime import ProgramFailed
from batch_agent.core.requests import NO_USAGE, Usage
from batch_agent.programs.runtimes.opencode.session_messages import (
    group_by_message,
    read_event,
    read_messages,
    to_result,
)


def settings(role: str, *parts: dict[str, Any], **info: Any) -> dict[str, Any]:
    return {"info": {"role": role, "id": "msg_1", **info}, "parts": list(parts)}


def text(output: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": output, "id": "prt_1", **more}


def tool(name: str, **state: Any) -> dict[str, Any]:
    return {"type": "tool", "tool": name, "callID": "call_1", "state": state}


def read(*messages: dict[str, Any]) -> Any:
    return to_result((), read_messages(json.dumps(messages).encode()))


def test_reasoning_calls_and_results_are_in_the_transcript() -> None:
    state = {"status": "completed", "input": {"path": "a"}, "output": "1: x", "time": {"start": 10, "end": 260}}
    result = read(
        settings("user", text("do it"), text("a reminder", synthetic=True)),
        settings("assistant", {"type": "reasoning", "text": "hm"}, tool("read", **state)),
        settings("assistant", text("one"), text("two")),
    )
    [asked, thought, results, last] = result.transcript
    assert asked == User("do it")
    assert thought == Assistant("", (results.results[0].call,), (Thought("hm"),))
    assert isinstance(results, ToolResults)
    assert (results.results[0].content, results.results[0].seconds) == ("1: x", 0.25)
    assert results.results[0].call.arguments == '{"path":"a"}'
    assert last == Assistant("one\n\ntwo")
    assert (result.text, result.turns) == ("one\n\ntwo", 2)


def test_tokens_of_all_turns_are_added_including_cached_and_reasoning_tokens() -> None:
    tokens = {"input": 40, "output": 7, "reasoning": 3, "cache": {"read": 60, "write": 5}}
    finish = {"type": "step-finish", "tokens": tokens}
    assert read(settings("assistant", finish), settings("assistant", finish)).usage == Usage(210, 120, 20, written=10)


@pytest.mark.parametrize("state", [{"status": "error", "error": "no such file"}, {"status": "running"}])
def test_a_call_that_failed_or_never_ended_is_reported_as_failed(state: dict[str, Any]) -> None:
    result = read(settings("assistant", tool("read", input={}, **state)))
    assert [call.ok for call in result.calls] == [False]


def test_an_invalid_call_keeps_the_name_that_the_model_used() -> None:
    state = {"status": "completed", "input": {"tool": "nosuch", "error": "no such tool"}, "output": "is invalid"}
    [call] = read(settings("assistant", tool("invalid", **state))).calls
    assert (call.name, call.ok) == ("nosuch", False)


@pytest.mark.parametrize(
    ("error", "output", "retryable"),
    [
        ({"name": "APIError", "data": {"message": "too hot", "isRetryable": True}}, "too hot", True),
        ({"name": "APIError", "data": {"message": "bad", "isRetryable": False}}, "bad", False),
        ({"name": "MessageOutputLengthError", "data": {}}, "MessageOutputLengthError", False),
        ({"name": "MessageAbortedError", "data": {"message": "Aborted"}}, "Aborted", True),
    ],
)
def test_an_error_at_the_end_is_reported_with_the_message_of_opencode(
    error: dict[str, Any], output: str, retryable: bool
) -> None:
    with pytest.raises(ProgramFailed, match=output) as to_failure:
        read(settings("user", text("do it")), settings("assistant", text("half"), error=error))
    assert to_failure.value.retryable is retryable


def test_a_session_without_an_answer_has_an_empty_one() -> None:
    result = read(settings("user", text("do it")))
    assert (result.text, result.turns, result.usage) == ("", 0, NO_USAGE)


@pytest.mark.parametrize("body", [b"", b"not json", b'{"name": "x"}', b'[{"info": {}}]', b'[{"parts": 3}]'])
def test_messages_of_another_format_are_reported_as_unreadable(body: bytes) -> None:
    with pytest.raises(ProgramFailed, match="cannot be read"):
        read_messages(body)


def test_lines_that_are_not_events_are_left_out() -> None:
    lines = [b"npm warn", b"", b"[1]", b'{"part": {"type": "text", "text": "hi", "messageID": "m"}}']
    events = [event for line in lines if (event := read_event(line)) is not None]
    assert to_result((), group_by_message(events)).text == "hi"
