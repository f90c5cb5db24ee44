"""The OpenAI chat dialect for any chunking, any conversation and any nonsense."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import orjson
from hypothesis import given
from hypothesis import strategies as st
from tests.support.corrupted_json import json_values, paths, pieces, replaced, until_it_fails

from batch_agent.backends.dialects.openai.decoder import OpenAIStreamDecoder, decode_reply
from batch_agent.backends.dialects.openai.encoder import OpenAIChat
from batch_agent.backends.http.sse import SseEvent, SseParser
from batch_agent.core.messages import Assistant, Message, Prompt, ToolCall, ToolResult, ToolResults, ToolSpec, User
from batch_agent.core.requests import CallDelta, Delta, Finished, ReasoningDelta, Request, Sampling, TextDelta

T = TypeVar("T")

line_ends = st.sampled_from([b"\n", b"\r\n", b"\r"])
cuts = st.lists(st.integers(0, 4000), max_size=12)


sse_lines = st.one_of(
    st.builds(lambda text: b"data: " + text.encode(), st.text(alphabet="ab {}:", max_size=8)),
    st.sampled_from([b"", b"", b": ping", b"event: error", b"data", b"id: 3", b":"]),
)


@given(st.lists(st.tuples(sse_lines, line_ends), max_size=20), cuts)
def test_the_events_of_a_stream_are_the_same_for_any_chunking(lines: list[tuple[bytes, bytes]], at: list[int]) -> None:
    data = b"".join(line + end for line, end in lines) + b":"

    def read(chunks: Iterable[bytes]) -> list[SseEvent]:
        parser = SseParser()
        return [event for chunk in chunks for event in parser.feed(chunk)]

    whole = read([data])
    assert read(pieces(data, at)) == whole
    assert read(data[i : i + 1] for i in range(len(data))) == whole


def runs(deltas: Iterable[Delta | str]) -> list[Delta | str]:
    """With text that follows text joined, and thought that follows thought: how much of it a delta holds depends on
    the chunks."""
    found: list[Delta | str] = []
    for delta in deltas:
        match found[-1:], delta:
            case [TextDelta(before)], TextDelta(more):
                found[-1] = TextDelta(before + more)
            case [ReasoningDelta(before)], ReasoningDelta(more):
                found[-1] = ReasoningDelta(before + more)
            case _:
                found.append(delta)
    return found


texts = st.text(max_size=12)
usages = st.none() | st.fixed_dictionaries(
    {"prompt_tokens": st.integers(0, 99), "completion_tokens": st.integers(0, 9)}
)
said = st.one_of(
    st.builds(lambda text: {"content": text}, texts),
    st.builds(lambda text: {"reasoning_content": text}, texts),
    st.builds(lambda text: {"refusal": text}, texts),
    st.builds(
        lambda index, name, arguments: {
            "tool_calls": [{"index": index, "id": f"c{index}", "function": {"name": name, "arguments": arguments}}]
        },
        st.integers(0, 2),
        st.sampled_from(["look", "find"]),
        texts,
    ),
)
chunks = st.builds(
    lambda delta, finish, usage: {"choices": [{"delta": delta, "finish_reason": finish}], "usage": usage},
    said,
    st.sampled_from([None, None, None, "stop", "tool_calls", "length", "abort"]),
    usages,
)
stream_events = st.one_of(
    chunks.map(orjson.dumps),
    usages.map(lambda usage: orjson.dumps({"choices": [], "usage": usage})),
    st.sampled_from([b"[DONE]", b"", b"{", b'{"error": {"message": "boom"}}', b"[]"]),
)


@given(st.lists(stream_events, max_size=10), line_ends, st.sampled_from([b"", b": keep-alive"]), cuts)
def test_the_deltas_of_a_stream_are_the_same_for_any_chunking(
    events: list[bytes], end: bytes, comment: bytes, at: list[int]
) -> None:
    data = b"".join(comment + end + b"data: " + event + end + end for event in events) + b":"

    def decode(chunks: Iterable[bytes]) -> Iterator[Delta]:
        decoder = OpenAIStreamDecoder()
        for chunk in chunks:
            yield from decoder.feed(chunk)
        if not decoder.ended:
            yield from decoder.close()

    whole = runs(until_it_fails(lambda: decode([data])))
    assert runs(until_it_fails(lambda: decode(pieces(data, at)))) == whole
    assert runs(until_it_fails(lambda: decode(data[i : i + 1] for i in range(len(data))))) == whole
    assert isinstance(whole[-1], Finished | str)
    assert not any(isinstance(delta, Finished) for delta in whole[:-1])


@given(texts, texts, st.lists(texts, max_size=3), st.sampled_from(["stop", "length", "content_filter"]), usages)
def test_an_answer_is_the_same_whether_it_was_streamed_or_not(
    text: str, reasoning: str, arguments: list[str], finish: str, usage: Any
) -> None:
    calls = [
        {"index": index, "id": f"c{index}", "function": {"name": "look", "arguments": told}}
        for index, told in enumerate(arguments)
    ]
    message = {"content": text, "reasoning": reasoning, "tool_calls": calls}
    body = {"choices": [{"message": message, "finish_reason": finish}], "usage": usage}
    deltas = (
        [{"content": letter} for letter in text] + [{"reasoning": reasoning}] + [{"tool_calls": [c]} for c in calls]
    )
    events: list[dict[str, Any]] = [{"choices": [{"delta": delta}]} for delta in deltas]
    events += [{"choices": [{"delta": {}, "finish_reason": finish}]}, {"choices": [], "usage": usage}]
    decoder = OpenAIStreamDecoder()
    streamed = list(decoder.feed(b"".join(b"data: %b\n\n" % orjson.dumps(e) for e in events) + b"data: [DONE]\n\n"))
    assert joined(streamed) == joined(decode_reply(orjson.dumps(body)))


def joined(deltas: list[Delta]) -> tuple[str, str, list[ToolCall], Delta]:
    return (
        "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)),
        "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)),
        [delta.call for delta in deltas if isinstance(delta, CallDelta)],
        deltas[-1],
    )


REPLY = {
    "choices": [
        {
            "message": {
                "content": "a",
                "reasoning": "b",
                "refusal": None,
                "tool_calls": [{"id": "c", "index": 0, "function": {"name": "n", "arguments": "{}"}}],
            },
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}},
}


@given(st.sampled_from(paths(REPLY)), json_values)
def test_any_corruption_of_an_answer_is_decoded_or_is_a_backend_error(path: tuple[Any, ...], nonsense: Any) -> None:
    body = replaced(REPLY, path, nonsense)
    plain = until_it_fails(lambda: iter(decode_reply(orjson.dumps(body))))
    assert isinstance(plain[-1], Finished | str)
    event = orjson.dumps(body).replace(b'"message"', b'"delta"', 1)
    decoder = OpenAIStreamDecoder()
    streamed = until_it_fails(lambda: decoder.feed(b"data: " + event + b"\n\ndata: [DONE]\n\n"))
    assert isinstance(streamed[-1], Finished | str)
    for delta in (*plain, *streamed):
        if isinstance(delta, CallDelta):
            assert all(isinstance(part, str) for part in (delta.call.id, delta.call.name, delta.call.arguments))


any_text = st.text(st.characters(exclude_categories=()), max_size=10)
calls = st.builds(ToolCall, any_text, any_text, any_text)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(User, any_text),
    st.builds(Assistant, any_text, st.lists(calls, max_size=2).map(tuple), any_text),
    st.builds(ToolResults, st.lists(st.builds(ToolResult, calls, any_text), min_size=1, max_size=2).map(tuple)),
)


@given(st.lists(messages, min_size=1, max_size=8), any_text, st.booleans(), st.booleans())
def test_an_encoded_turn_up_to_its_last_message_is_a_prefix_of_the_next_turn(
    story: list[Message], system: str, with_tools: bool, streams: bool
) -> None:
    tools = (ToolSpec("look", "Look it up", {"type": "object", "properties": {}}),) if with_tools else ()
    dialect = OpenAIChat()
    first = Request(Prompt(system, tools), (story[0],), "m", Sampling(temperature=0.5))
    before = b""
    for number in range(1, len(story) + 1):
        turn = replace(first, messages=tuple(story[:number]))
        encoded = dialect.encode(turn)
        assert encoded.startswith(before)
        before = encoded.removesuffix(b"]}")
        last = replace(turn, may_call_tools=False, stream=streams, answer_schema={"type": "object"})
        assert dialect.encode(last).startswith(before)
        orjson.loads(encoded)
