from dataclasses import fields, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from batch_agent.core.images import ImageRef
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
from batch_agent.rollouts.continuation import LastTurn, addition, joint_additions, joint_request

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
def test_only_what_follows_a_turn_is_taken_from_the_rendering(
    messages: list[list[int]], sampled: list[int], rendered: list[int], result: list[int]
) -> None:
    prompt = [id for message in messages for id in (*message, END, 10)]
    last = last_turn(prompt, [*sampled, END])
    anew = [*prompt, *rendered, END, 10, *result, END, 10, 7]
    assert addition(last, packed_ids(anew)) == packed_ids([10, *result, END, 10, 7])


def test_a_turn_without_an_end_is_not_continued() -> None:
    prompt, rendered = [5, END], packed_ids([5, END, 6, END, 8])
    assert addition(last_turn(prompt, []), rendered) is None
    assert addition(last_turn(prompt, [6, END], finish="length"), rendered) is None
    assert addition(last_turn(prompt, [6, 9]), rendered) is None  # another id ended it than the template writes


def test_a_beginning_that_is_rendered_in_another_way_is_not_continued() -> None:
    last = last_turn([5, END], [6, END])
    assert addition(last, packed_ids([4, END, 6, END, 8])) is None
    assert addition(last, packed_ids([5, END])) is None  # the turn is not in it


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


def test_a_request_with_images_does_not_continue_a_turn() -> None:
    image = ImageRef("digest", "image/png")
    last, answer = last_turn([5, END], [6, END]), Assistant("", (CALL,))
    seen = ToolResults((ToolResult(CALL, "there", images=(image,)),))
    assert not last.is_continued_by(request(ASKED, answer, seen))


BEGINNING = [10, 7]


def joint(*texts: tuple[list[int], list[int]]) -> list[int]:
    """Turns and what follows them, as a template renders them in one conversation."""
    return [id for said, added in texts for id in (*said, END, 10, *added, END, *BEGINNING)]


@settings(max_examples=20)
@given(TEXT, st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=5))
def test_each_turn_takes_its_part_of_a_joint_rendering(
    prompt: list[int], texts: list[tuple[list[int], list[int]]]
) -> None:
    first = last_turn([*prompt, END, *BEGINNING], [9, END])
    rendered = packed_ids([*prompt, END, *BEGINNING, *joint(*texts)])
    parts = [packed_ids([10, *added, END, *BEGINNING]) for _, added in texts]
    assert joint_additions(first, rendered, len(texts), 1) == parts


def test_a_joint_rendering_of_another_form_has_no_parts() -> None:
    first, prompt = last_turn([5, END, *BEGINNING], [6, END]), [5, END, *BEGINNING]
    texts = ([20], [21]), ([30], [31])
    assert joint_additions(first, packed_ids([*prompt, *joint(*texts)]), 2, 1) is not None
    unlike = {
        "an end in a text": [*prompt, *joint(([20], [21, END, *BEGINNING, 22]), texts[1])],
        "two ends in two texts": [*prompt, *joint(([20], [21, END]), ([30], [END, 31]))],
        "another beginning": [4, *prompt[1:], *joint(*texts)],
        "turns begin in another way than the last one": [*prompt, *joint(*texts), 8],
        "no beginning of a turn": [*prompt[:2], 10, 7, *[20, END, 21, END, 30, END, 31, END]],
        "a turn less": [*prompt, *joint(texts[0])],
    }
    found = {name: joint_additions(first, packed_ids(ids), 2, 1) for name, ids in unlike.items()}
    assert found == dict.fromkeys(unlike)
    assert joint_additions(first, packed_ids([*prompt, 20, END, 10, 21, 30, END, 10, 31, *BEGINNING]), 2, 0) is None


def test_a_joint_request_is_the_first_conversation_and_what_follows_the_prompts_of_the_others() -> None:
    answer, other = Assistant("", (CALL,)), User("Who?")
    last = last_turn([5, END], [6, END])
    turns = [(last, request(ASKED, answer, RESULT)), (replace(last, messages=(other,)), request(other, answer, RESULT))]
    assert joint_request(turns) == replace(turns[0][1], messages=(ASKED, answer, RESULT, answer, RESULT))


def test_a_request_with_ids_is_otherwise_the_same() -> None:
    request = Request(Prompt(""), (User("x"),), "m", Sampling())
    others = [each for each in fields(Request) if each.name != "tokens"]
    marked = replace(request, **{each.name: object() for each in others})  # type: ignore[arg-type]
    tokens = TokenRequest(b"abcd")
    assert marked.with_tokens(tokens) == replace(marked, tokens=tokens)
