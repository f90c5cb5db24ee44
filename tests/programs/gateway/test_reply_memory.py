"""Replies are restored as the model wrote them."""

import pytest

from batch_agent.core.messages import Assistant, Thought, ToolCall, User
from batch_agent.core.requests import NO_USAGE, Reply
from batch_agent.programs.gateway.reply_memory import ReplyMemory

THOUGHTS = (Thought("Hm.", "signed"), Thought(redacted="xyz"))


def said(memory: ReplyMemory, text: str = "", *calls: ToolCall, thoughts: tuple[Thought, ...] = ()) -> Assistant:
    reply = memory.keep(Reply(text, "stop", NO_USAGE, calls, thoughts), ())
    return Assistant(reply.text, reply.calls, reply.thoughts)


@pytest.mark.parametrize(
    ("own", "again"),
    [
        ('{ "b": 1.0, "a": [true] }', '{"a":[true],"b":1}'),
        ('{"path": "caf\\u00e9"}', '{"path":"café"}'),
        ("", "{}"),
        (" ", ""),
        ('{"cut off', '{"malformed":"{\\"cut off"}'),
        ('"a text"', '{"malformed":"\\"a text\\""}'),
    ],
)
def test_equivalent_arguments_are_sent_as_the_model_wrote_them(own: str, again: str) -> None:
    memory = ReplyMemory()
    turn = said(memory, "", ToolCall("c1", "read", own))
    assert memory.restore(Assistant(calls=(ToolCall("c1", "read", again),))) == turn


@pytest.mark.parametrize(
    "other", ['{"a":2}', '{"a":true}', '{"a":1,"b":1}', '{"a":[1]}', "{}", "no json", '{"a":"1"}', "[" * 5000]
)
def test_changed_arguments_are_sent_as_the_program_wrote_them(other: str) -> None:
    memory = ReplyMemory()
    said(memory, "", ToolCall("c1", "read", '{"a": 1}'))
    received = Assistant(calls=(ToolCall("c1", "read", other),))
    assert memory.restore(received) == received


def test_a_call_of_another_tool_is_sent_as_the_program_wrote_it() -> None:
    memory = ReplyMemory()
    said(memory, "", ToolCall("c1", "read", "{ }"))
    received = Assistant(calls=(ToolCall("c1", "invalid", "{}"),))
    assert memory.restore(received) == received


@pytest.mark.parametrize("text", ["\n\nDone.", "Done.\n", " Done. ", "Done."])
def test_whitespace_around_a_text_is_restored_as_the_model_wrote_it(text: str) -> None:
    memory = ReplyMemory()
    turn = said(memory, text)
    assert memory.restore(Assistant("Done.")) == memory.restore(Assistant(" Done.\n")) == turn
    assert memory.restore(Assistant("Done!")) == Assistant("Done!")


def test_a_repeated_text_is_restored_as_at_its_first_occurrence() -> None:
    memory = ReplyMemory()
    first = said(memory, "Done.\n")
    said(memory, "Done.")
    assert memory.restore(Assistant("Done.")) == first


def test_a_blank_text_before_a_tool_call_is_not_lost() -> None:
    memory = ReplyMemory()
    turn = said(memory, "\n\n", ToolCall("c1", "read", "{}"))
    assert memory.restore(Assistant(calls=(ToolCall("c1", "read", "{}"),))) == turn


def test_reasoning_that_a_program_omits_is_restored_with_its_signatures() -> None:
    memory = ReplyMemory()
    call = ToolCall("c1", "read", "{}")
    turn = said(memory, "Look.", call, thoughts=THOUGHTS)
    assert memory.restore(Assistant("Look.", (call,))) == turn
    assert memory.restore(Assistant("Look.", (call,), (Thought("Hm."), Thought(redacted="xyz")))) == turn
    other = Assistant("Look.", (call,), (Thought("Something else."),))
    assert memory.restore(other) == other


def test_a_turn_that_a_program_splits_has_its_reasoning_once() -> None:
    memory = ReplyMemory()
    first, second = ToolCall("c1", "read", '{"a": 1}'), ToolCall("c2", "read", '{"b": 2}')
    said(memory, "\n", first, second, thoughts=THOUGHTS)
    assert memory.restore(Assistant(calls=(ToolCall("c1", "read", '{"a":1}'),))) == Assistant("\n", (first,), THOUGHTS)
    assert memory.restore(Assistant(calls=(ToolCall("c2", "read", '{"b":2}'),))) == Assistant("", (second,))


def test_every_tool_call_has_a_unique_id() -> None:
    memory = ReplyMemory()
    call = ToolCall("", "read", "{}")
    history = (User("Hi"), Assistant(calls=(ToolCall("call_2", "read", "{}"),)))
    reply = Reply("", "calls", NO_USAGE, (call, call, ToolCall("mine", "read", "{}"), ToolCall("mine", "read", "{}")))
    ids = [each.id for each in memory.keep(reply, history).calls]
    assert ids == ["call_1", "call_3", "mine", "call_4"]
    again = memory.keep(Reply("", "calls", NO_USAGE, (ToolCall("mine", "read", "{}"),)), ())
    assert again.calls[0].id == "call_5"


def test_the_oldest_remembered_reply_is_dropped_first() -> None:
    memory = ReplyMemory(max_chars=100, max_texts=2)
    for number in range(10):
        said(memory, "", ToolCall(f"c{number}", "read", f'{{ "a": "{"x" * 20}{number}" }}'))
        said(memory, f"{number}\n")

    def is_known(number: int) -> bool:
        received = ToolCall(f"c{number}", "read", f'{{"a":"{"x" * 20}{number}"}}')
        return memory.restore(Assistant(calls=(received,))).calls[0] != received

    assert [number for number in range(10) if is_known(number)] == [8, 9]
    assert [n for n in range(10) if memory.restore(Assistant(str(n))).text.endswith("\n")] == [8, 9]


def test_a_turn_too_long_to_be_remembered_is_sent_as_it_is() -> None:
    memory = ReplyMemory(max_chars=10)
    call = ToolCall("c1", "read", '{ "a": "a long text" }')
    assert said(memory, "", call) == Assistant(calls=(call,))
    assert memory.restore(Assistant(calls=(ToolCall("c1", "read", '{"a":"a long text"}'),))).calls != (call,)
