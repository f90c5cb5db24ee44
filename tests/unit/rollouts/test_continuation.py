from dataclasses import fields, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from batch_agent.core.messages import Assistant, Prompt, ToolCall, ToolResult, ToolResults, User
from batch_agent.core.requests import (
    NO_USAGE,
    Reply,
    Request,
    Sampling,
    TokenRequest,
    TurnTokens,
    packed_ids,
    packed_logprobs,
)
from batch_agent.rollouts.continuation import LastTurn, continued_prompt

END = 512  # in bytes, it also occurs between two ids
WORD = st.integers(0, 2**20).filter(lambda id: id != END)
TEXT = st.lists(WORD, max_size=6)
CALL = ToolCall("c1", "look", '{"a": 1}')
ASKED = User("Where?")
RESULT = ToolResults((ToolResult(CALL, "there"),))


def last_turn(prompt: list[int], sampled: list[int], *, finish: str = "stop") -> LastTurn:
    tokens = TurnTokens(packed_ids(prompt), packed_ids(sampled), packed_logprobs([0.0] * len(sampled)), finish, "m")
    return LastTurn(0, (ASKED,), Reply("", "calls", NO_USAGE, (CALL,)), tokens, len(tokens.prompt))


@settings(max_examples=20)
@given(st.lists(TEXT, min_size=1, max_size=4), TEXT, TEXT, TEXT)
def test_the_sampled_ids_stay_and_only_what_follows_is_rendered(
    messages: list[list[int]], sampled: list[int], rendered: list[int], result: list[int]
) -> None:
    prompt = [id for message in messages for id in (*message, END, 10)]
    last = last_turn(prompt, [*sampled, END])
    anew = [*prompt, *rendered, END, 10, *result, END, 10, 7]
    assert continued_prompt(last, packed_ids(anew)) == packed_ids([*prompt, *sampled, END, 10, *result, END, 10, 7])


def test_a_turn_without_an_end_is_not_continued() -> None:
    prompt, rendered = [5, END], packed_ids([5, END, 6, END, 8])
    assert continued_prompt(last_turn(prompt, []), rendered) is None
    assert continued_prompt(last_turn(prompt, [6, END], finish="length"), rendered) is None
    assert continued_prompt(last_turn(prompt, [6, 9]), rendered) is None  # another id ended it than the template writes


def test_a_beginning_that_is_rendered_in_another_way_is_not_continued() -> None:
    last = last_turn([5, END], [6, END])
    assert continued_prompt(last, packed_ids([4, END, 6, END, 8])) is None
    assert continued_prompt(last, packed_ids([5, END])) is None  # the turn is not in it


def request(*messages: User | Assistant | ToolResults) -> Request:
    return Request(Prompt("", ()), messages, "m", Sampling())


def test_only_a_request_that_adds_messages_continues_a_turn() -> None:
    last, answer = last_turn([5, END], [6, END]), Assistant("", (CALL,))
    assert last.is_continued_by(request(ASKED, answer, RESULT))
    assert last.is_continued_by(request(ASKED, Assistant("", (replace(CALL, id="other"),)), RESULT))
    assert not last.is_continued_by(request(ASKED, answer))
    assert not last.is_continued_by(request(User("Who?"), answer, RESULT))
    assert not last.is_continued_by(request(ASKED, Assistant("changed", (CALL,)), RESULT))
    assert not last.is_continued_by(request(ASKED, Assistant("", (replace(CALL, arguments="{}"),)), RESULT))
    assert not last.is_continued_by(request(ASKED, User("Sorry?"), answer))


def test_a_request_with_ids_is_otherwise_the_same() -> None:
    request = Request(Prompt(""), (User("x"),), "m", Sampling())
    others = [each for each in fields(Request) if each.name != "tokens"]
    marked = replace(request, **{each.name: object() for each in others})  # type: ignore[arg-type]
    tokens = TokenRequest(b"abcd")
    assert marked.with_tokens(tokens) == replace(marked, tokens=tokens)
