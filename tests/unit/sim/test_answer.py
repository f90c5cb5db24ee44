from hypothesis import given
from hypothesis import strategies as st

from batch_agent.sim.answer import Call, SimAnswer, SimReply, reply_of


def streamed(reply: SimReply, chunk: int) -> tuple[str, list[tuple[str, str]]]:
    """Text and calls as a client puts them together from chunks of `chunk` tokens."""
    text = ""
    calls: list[tuple[str, str]] = []
    for start in range(0, reply.tokens, chunk):
        stop = min(start + chunk, reply.tokens)
        text += reply.text_between(start, stop)
        for index, opens, arguments in reply.arguments_between(start, stop):
            if opens:
                assert index == len(calls)
                calls.append((reply.calls[index].name, ""))
            calls[index] = (calls[index][0], calls[index][1] + arguments)
    return text, calls


@given(
    st.text(max_size=60),
    st.lists(st.tuples(st.text(max_size=8), st.text(max_size=30)), max_size=3),
    st.integers(1, 7),
)
def test_any_chunking_adds_up_to_the_whole_answer(text: str, calls: list[tuple[str, str]], chunk: int) -> None:
    reply = reply_of(SimAnswer(text, tuple(Call(*call) for call in calls)), max_tokens=1000)
    assert streamed(reply, chunk) == (text, calls)


def test_an_answer_counts_its_text_and_its_end() -> None:
    reply = reply_of(SimAnswer("12345"), max_tokens=3)
    assert (reply.tokens, reply.finish_reason, reply.text) == (3, "stop", "12345")


def test_the_token_limit_cuts_an_answer_off() -> None:
    reply = reply_of(SimAnswer("12345678"), max_tokens=2)
    assert (reply.tokens, reply.finish_reason, reply.text) == (2, "length", "12345678")
    assert reply_of(SimAnswer("12345678"), max_tokens=1).text == "1234"


def test_a_truncated_call_is_shown_as_text() -> None:
    reply = reply_of(SimAnswer(calls=(Call("search", '{"q":"a long question"}'),)), max_tokens=9)
    assert reply.finish_reason == "length"
    assert reply.calls == ()
    assert reply.text.startswith("<tool_call>")
    assert streamed(reply, 2) == (reply.text, [])
