"""Facts as bytes and back."""

from dataclasses import fields, replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_agent.core.agent_config import Job
from batch_agent.core.coordinator import Completion
from batch_agent.core.errors import ErrorKind
from batch_agent.core.facts import Compacted, Fact, Replied, Returned, Shortened, Started
from batch_agent.core.images import ImageRef
from batch_agent.core.messages import Reference, Thought, ToolCall, ToolResult
from batch_agent.core.program_runtime import ProgramTrace
from batch_agent.core.requests import Reply, Usage, UsagePart
from batch_agent.core.results import AgentError
from batch_agent.store.codec import decode, decode_completion, decode_job, encode, encode_completion, encode_job

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


def unset(value: Any) -> list[str]:
    """Fields that have their defaults."""
    return [each.name for each in fields(value) if getattr(value, each.name) == each.default]


def test_no_field_of_a_fact_is_forgotten() -> None:
    usage = Usage(9, 1, 2, 3, 4, (UsagePart("batch", 0, Usage(9, 1, 2)),))
    call = ToolCall("1", "look", "{}")
    reply = Reply("text", "calls", usage, (call,), (Thought("hm", "x", "y"),))
    replied = Replied(reply, 0.1, 0.2, 0.3, 2, ProgramTrace(3), 100)
    image = ImageRef("sha", "image/png", 1, 2, 3)
    result = ToolResult(call, "text", True, 0.1, "shared", Reference("look()", 1), (image,))
    returned = Returned((result,), 0.2)
    assert [unset(each) for each in (usage, reply, replied, result, returned)] == [[], ["tokens"], [], [], []]
    assert decode(*encode(replied)) == replied
    assert decode(*encode(returned)) == returned


def test_what_an_earlier_version_wrote_is_read() -> None:
    fact = decode("replied", b'{"reply": {"text": "hi", "finish": "stop", "usage": {"input": 1}}}')
    assert fact == Replied(Reply("hi", "stop", Usage(1)))


def test_counts_of_tokens_that_are_mostly_zero_are_left_out() -> None:
    _, data = encode(Replied(Reply("hi", "stop", Usage(1, 0, 2))))
    assert b'"usage":{"input":1,"cached":0,"output":2}' in data


@pytest.mark.parametrize(("kind", "data"), [("odd", b"{}"), ("replied", b"{}"), ("returned", b"not json")])
def test_data_that_is_not_a_fact_is_rejected(kind: str, data: bytes) -> None:
    with pytest.raises(ValueError):
        decode(kind, data)


def test_values_with_lone_surrogates_are_written() -> None:
    job = Job(0, "key", {"path": "odd\ud801name"}, "Read odd\ud801name.")
    assert decode_job(encode_job(job)).task == "Read odd?name."
    fact = Returned((ToolResult(ToolCall("1", "look", "{}"), "odd\ud801name"),))
    found = decode(*encode(fact))
    assert isinstance(found, Returned)
    assert found.results[0].content == "odd?name"
    ending = Completion("key", AgentError(ErrorKind.INTERNAL, "odd\ud801name", True), 1.5, "worker")
    assert decode_completion(encode_completion(ending)) == replace(
        ending, error=AgentError(ErrorKind.INTERNAL, "odd?name", True)
    )


def test_a_job_and_a_completion_are_read_as_they_were_written() -> None:
    job = Job(3, "key", {"when": "now", "n": [1, 2.5, None]}, "Do it.", shared=4, parts=("one", "two"))
    assert decode_job(encode_job(job)) == job
    ending = Completion("key", None, 0.25, "worker")
    assert decode_completion(encode_completion(ending)) == ending


def test_an_input_that_json_cannot_hold_is_written_as_json_data() -> None:
    job = Job(0, "key", {"day": date(2026, 1, 2), "words": {"b", "a"}, "p": Path("x")}, "Do it.")
    assert decode_job(encode_job(job)).input == {"day": "2026-01-02", "words": ["a", "b"], "p": "x"}


def test_an_input_whose_keys_are_no_text_is_written() -> None:
    fact = decode(*encode(Started(0, {1: "one", date(2026, 1, 2): {None: "none"}}, "Do it.")))
    assert fact == Started(0, {"1": "one", "2026-01-02": {"null": "none"}}, "Do it.")
