"""Facts as bytes and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_agent.core.facts import Compacted, Fact, Replied, Returned, Shortened
from batch_agent.core.messages import Thought, ToolCall, ToolResult
from batch_agent.core.requests import Reply, Usage
from batch_agent.store.codec import decode, encode

seconds = st.floats(0, 1e6, allow_nan=False)
text = st.text()
tokens = st.integers(0, 2**31)
calls = st.builds(ToolCall, text, text, text)
replies = st.builds(
    Reply,
    text,
    st.sampled_from(["stop", "calls", "length", "refusal"]),
    st.builds(Usage, tokens, tokens, tokens),
    st.lists(calls, max_size=3).map(tuple),
    st.lists(st.builds(Thought, text, text, text), max_size=3).map(tuple),
)
facts: st.SearchStrategy[Fact] = st.one_of(
    st.builds(Replied, replies, seconds, seconds, st.none() | seconds, st.integers(1, 40)),
    st.builds(
        Returned, st.lists(st.builds(ToolResult, calls, text, st.booleans(), seconds), max_size=3).map(tuple), seconds
    ),
    st.builds(
        Compacted,
        st.lists(st.builds(Shortened, tokens, text, st.booleans()), max_size=3).map(tuple),
        tokens,
        tokens,
        seconds,
    ),
)


@given(facts)
def test_a_fact_is_read_back_equal(fact: Fact) -> None:
    assert decode(*encode(fact)) == fact


def test_what_an_earlier_version_wrote_is_read() -> None:
    fact = decode("replied", b'{"reply": {"text": "hi", "finish": "stop", "usage": {"input": 1}}}')
    assert fact == Replied(Reply("hi", "stop", Usage(1)))


@pytest.mark.parametrize(("kind", "data"), [("odd", b"{}"), ("replied", b"{}"), ("returned", b"not json")])
def test_what_no_fact_looks_like_is_refused(kind: str, data: bytes) -> None:
    with pytest.raises(ValueError):
        decode(kind, data)
