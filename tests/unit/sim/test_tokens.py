from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from batch_agent.sim.answer import Call, SimAnswer, reply_of
from batch_agent.sim.answer_script import parse_chat
from batch_agent.sim.tokens import block_hashes, decode, encode, from_ids, render_chat, text_of, to_ids

TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]

calls = st.lists(st.builds(Call, st.text(max_size=6), st.text(max_size=12)), min_size=1, max_size=3)
answers = st.one_of(
    st.builds(SimAnswer, text=st.text(max_size=40)),
    st.builds(SimAnswer, text=st.text(max_size=10), calls=calls.map(tuple)),
)
users = st.fixed_dictionaries({"role": st.just("user"), "content": st.text(max_size=30)})


def message_of(answer: SimAnswer) -> dict[str, Any]:
    """The answer as a client sends it back."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
    if answer.calls:
        functions = [{"name": call.name, "arguments": call.arguments} for call in answer.calls]
        message["tool_calls"] = [{"id": "any", "type": "function", "function": function} for function in functions]
    return message


@given(st.lists(users, min_size=1, max_size=3), answers, users, st.sampled_from([None, TOOLS]))
def test_a_prompt_and_its_answer_are_a_prefix_of_the_next_prompt(
    messages: list[dict[str, Any]], answer: SimAnswer, user: dict[str, Any], tools: list[Any] | None
) -> None:
    prompt = render_chat(messages, tools)
    following = render_chat([*messages, message_of(answer), user], tools)
    said = reply_of(answer, max_tokens=1000)
    assert following.startswith(prompt + said.data)
    assert len(prompt) % 4 == len(said.data) % 4 == 0


def test_tools_come_first_and_their_order_matters() -> None:
    messages = [{"role": "user", "content": "hi"}]
    other = [{"function": TOOLS[0]["function"], "type": "function"}]
    assert render_chat(messages, TOOLS).startswith(b"<|tools|>")
    assert render_chat(messages, TOOLS) != render_chat(messages, other)


def test_content_may_be_text_or_parts_or_nothing() -> None:
    assert text_of("a") == "a"
    assert text_of([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]) == "ab"
    assert text_of([{"type": "image_url", "image_url": {"url": "x"}}]).startswith("<image ")
    assert text_of(None) == ""


def test_a_block_hash_stands_for_everything_before_it() -> None:
    one = block_hashes(b"aaaabbbbccccdd", block_size=1)
    other = block_hashes(b"xaaabbbbcccc", block_size=1)
    assert len(one) == 3
    assert one[:2] == block_hashes(b"aaaabbbb", block_size=1)
    assert not set(one) & set(other)


def test_another_salt_shares_nothing() -> None:
    assert not set(block_hashes(b"a" * 64, 4)) & set(block_hashes(b"a" * 64, 4, salt="mine"))


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_token_ids_survive_the_way_there_and_back(ids: list[int]) -> None:
    assert to_ids(from_ids(ids)) == ids


@given(st.text())
def test_a_text_survives_its_tokens(text: str) -> None:
    data = encode(text)
    assert decode(data) == text
    assert len(data) % 4 == 0


@given(st.lists(st.text(st.sampled_from("<|/>auser "), max_size=12)))
def test_a_text_full_of_token_separators_survives_its_tokens(pieces: list[str]) -> None:
    text = "<//>".join(pieces)
    assert decode(encode(text)) == text


unmarked = st.text(max_size=30).filter(lambda text: "<|" not in text and "<//>" not in text)
turns = st.lists(st.tuples(st.sampled_from(["system", "user", "assistant", "tool"]), unmarked), min_size=1, max_size=4)


@given(turns, st.sampled_from([None, TOOLS]), st.booleans())
def test_a_rendered_conversation_can_be_read_and_keeps_its_tokens_as_text(
    turns: list[tuple[str, str]], tools: list[Any] | None, opens_answer: bool
) -> None:
    messages = [{"role": role, "content": content} for role, content in turns]
    prompt = render_chat(messages, tools, opens_answer=opens_answer)
    assert parse_chat(prompt) == (messages, tools)
    assert encode(decode(prompt)) == prompt


def test_calls_are_seen_in_a_prompt_but_not_one_that_was_cut_off() -> None:
    call = {"function": {"name": "search", "arguments": "{}"}}
    asked = {"role": "user", "content": "hi"}
    made = parse_chat(render_chat([asked, {"role": "assistant", "tool_calls": [call]}, asked], None))
    cut = parse_chat(render_chat([asked, {"role": "assistant", "content": '<tool_call>{"name'}, asked], None))
    assert [bool(message.get("tool_calls")) for message in made.messages] == [False, True, False]
    assert not any(message.get("tool_calls") for message in cut.messages)


def test_a_prompt_without_the_templates_marks_is_a_users() -> None:
    assert parse_chat(encode("once upon")) == ([{"role": "user", "content": "once upon"}], None)
