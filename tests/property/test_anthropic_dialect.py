"""The Anthropic dialect for any chunking, any conversation and any nonsense."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st
from tests.support.corrupted_json import json_values, paths, pieces, replaced, until_it_fails

from batch_agent.backends.dialects.anthropic.decoder import AnthropicStreamDecoder, decode_reply
from batch_agent.backends.dialects.anthropic.encoder import AnthropicMessages
from batch_agent.core.messages import (
    Assistant,
    Message,
    Prompt,
    Thought,
    ToolCall,
    ToolResult,
    ToolResults,
    ToolSpec,
    User,
)
from batch_agent.core.requests import CallDelta, Delta, Finished, ReasoningDelta, Request, Sampling, TextDelta

texts = st.text(max_size=12)
counts = st.none() | st.integers(0, 99)
usages = st.none() | st.dictionaries(
    st.sampled_from(["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens"]), counts
)


def decode(chunks: Iterable[bytes]) -> Iterator[Delta]:
    decoder = AnthropicStreamDecoder()
    for chunk in chunks:
        yield from decoder.feed(chunk)
    if not decoder.ended:
        yield from decoder.close()


def as_event(event: Any) -> bytes:
    return b"data: " + orjson.dumps(event) + b"\n\n"


indexes = st.integers(0, 2)
blocks = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, texts),
    st.builds(lambda text, sign: {"type": "thinking", "thinking": text, "signature": sign}, texts, texts),
    st.builds(lambda data: {"type": "redacted_thinking", "data": data}, texts),
    st.builds(
        lambda id, name, given: {"type": "tool_use", "id": id, "name": name, "input": given},
        texts,
        st.sampled_from(["look", "find"]),
        st.dictionaries(texts, json_values, max_size=2),
    ),
    st.just({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}),
)
block_deltas = st.one_of(
    st.builds(lambda text: {"type": "text_delta", "text": text}, texts),
    st.builds(lambda text: {"type": "thinking_delta", "thinking": text}, texts),
    st.builds(lambda text: {"type": "signature_delta", "signature": text}, texts),
    st.builds(lambda text: {"type": "input_json_delta", "partial_json": text}, texts),
)
reasons = st.sampled_from(["end_turn", "tool_use", "max_tokens", "refusal", "model_context_window_exceeded"])
stream_events = st.one_of(
    st.builds(lambda usage: {"type": "message_start", "message": {"usage": usage}}, usages),
    st.builds(lambda at, block: {"type": "content_block_start", "index": at, "content_block": block}, indexes, blocks),
    st.builds(lambda at, delta: {"type": "content_block_delta", "index": at, "delta": delta}, indexes, block_deltas),
    st.builds(lambda at: {"type": "content_block_stop", "index": at}, indexes),
    st.builds(
        lambda reason, usage: {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage},
        st.none() | reasons,
        usages,
    ),
    st.sampled_from([{"type": "message_stop"}, {"type": "ping"}, {"type": "error", "error": {"message": "boom"}}]),
).map(orjson.dumps) | st.sampled_from([b"", b"{", b"[]", b"[DONE]"])
line_ends = st.sampled_from([b"\n", b"\r\n", b"\r"])
names = st.sampled_from([b": keep-alive", b"event: ping", b"event: content_block_delta"])
cuts = st.lists(st.integers(0, 4000), max_size=12)


@given(st.lists(stream_events, max_size=10), line_ends, names, cuts)
def test_the_deltas_of_a_stream_are_the_same_for_any_chunking(
    events: list[bytes], end: bytes, name: bytes, at: list[int]
) -> None:
    data = b"".join(name + end + b"data: " + event + end + end for event in events) + b":"
    whole = until_it_fails(lambda: decode([data]))
    assert until_it_fails(lambda: decode(pieces(data, at))) == whole
    assert until_it_fails(lambda: decode(data[i : i + 1] for i in range(len(data)))) == whole
    assert isinstance(whole[-1], Finished | str)
    assert not any(isinstance(delta, Finished) for delta in whole[:-1])


def in_pieces(index: int, block: Any) -> Iterator[Any]:
    """A block as a server streams it: opened empty, and filled bit by bit."""
    empty = {"text": "", "thinking": "", "signature": "", "input": {}}
    opening = {key: empty.get(key, value) if key != "data" else value for key, value in block.items()}
    yield {"type": "content_block_start", "index": index, "content_block": opening}
    match block["type"]:
        case "text":
            deltas = [{"type": "text_delta", "text": letter} for letter in block["text"]]
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": letter} for letter in block["thinking"]]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        case "tool_use":
            told = orjson.dumps(block["input"]).decode() if block["input"] else ""
            deltas = [{"type": "input_json_delta", "partial_json": letter} for letter in ("", *told)]
        case _:
            deltas = []
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


@given(st.lists(blocks, max_size=4), reasons, usages)
def test_an_answer_is_the_same_whether_it_was_streamed_or_not(content: list[Any], reason: str, usage: Any) -> None:
    body = {"content": content, "stop_reason": reason, "usage": usage}
    events: list[Any] = [{"type": "message_start", "message": {"usage": usage}}]
    events += [event for index, block in enumerate(content) for event in in_pieces(index, block)]
    events += [{"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}, {"type": "message_stop"}]
    assert joined(list(decode(map(as_event, events)))) == joined(decode_reply(orjson.dumps(body)))


def joined(deltas: list[Delta]) -> tuple[str, list[tuple[str, str, str]], list[ToolCall], Delta]:
    """The text, the thoughts as they are signed, the calls, and the end."""
    thoughts, thinking = [], ""
    for delta in deltas:
        if isinstance(delta, ReasoningDelta):
            thinking += delta.text
            if delta.signature or delta.redacted:
                thoughts.append((thinking, delta.signature, delta.redacted))
                thinking = ""
    return (
        "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)),
        [*thoughts, (thinking, "", "")],
        [delta.call for delta in deltas if isinstance(delta, CallDelta)],
        deltas[-1],
    )


REPLY: dict[str, Any] = {
    "type": "message",
    "content": [
        {"type": "thinking", "thinking": "b", "signature": "s"},
        {"type": "redacted_thinking", "data": "d"},
        {"type": "text", "text": "a", "citations": None},
        {"type": "tool_use", "id": "c", "name": "n", "input": {}},
    ],
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": 1, "cache_creation_input_tokens": 1},
}
STREAM: list[Any] = [
    {"type": "message_start", "message": {"usage": REPLY["usage"]}},
    *(event for index, block in enumerate(REPLY["content"]) for event in in_pieces(index, block)),
    {"type": "content_block_start", "index": 4, "content_block": {"type": "tool_use", "id": "c", "name": "n"}},
    {"type": "content_block_delta", "index": 4, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
    {"type": "content_block_stop", "index": 4},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 3}},
    {"type": "message_stop"},
]


def assert_is_read_or_failed(deltas: list[Delta | str]) -> None:
    assert isinstance(deltas[-1], Finished | str)
    for delta in deltas:
        match delta:
            case CallDelta(call):
                assert all(isinstance(part, str) for part in (call.id, call.name, call.arguments))
            case TextDelta(text):
                assert isinstance(text, str)
            case ReasoningDelta(text, signature, redacted):
                assert all(isinstance(part, str) for part in (text, signature, redacted))


@given(st.sampled_from(paths(REPLY)), json_values)
def test_any_corruption_of_an_answer_is_decoded_or_is_a_backend_error(path: tuple[Any, ...], nonsense: Any) -> None:
    body = orjson.dumps(replaced(REPLY, path, nonsense))
    assert_is_read_or_failed(until_it_fails(lambda: iter(decode_reply(body))))


@given(st.sampled_from(paths(STREAM)[1:]), json_values)
def test_any_corruption_of_a_stream_is_decoded_or_is_a_backend_error(path: tuple[Any, ...], nonsense: Any) -> None:
    events = replaced(STREAM, path, nonsense)
    assert_is_read_or_failed(until_it_fails(lambda: decode(map(as_event, events))))


@given(st.lists(json_values, max_size=3))
def test_any_stream_is_decoded_or_is_a_backend_error(events: list[Any]) -> None:
    assert_is_read_or_failed(until_it_fails(lambda: decode(map(as_event, events))))


any_text = st.text(st.characters(exclude_categories=()), max_size=10)
arguments = any_text | st.dictionaries(texts, json_values, max_size=2).map(lambda value: orjson.dumps(value).decode())
calls = st.builds(ToolCall, any_text, any_text, arguments)
thoughts = st.builds(Thought, any_text, any_text, any_text)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(User, any_text),
    st.builds(Assistant, any_text, st.lists(calls, max_size=2).map(tuple), st.lists(thoughts, max_size=2).map(tuple)),
    st.builds(
        ToolResults,
        st.lists(st.builds(ToolResult, calls, any_text, st.booleans()), min_size=1, max_size=2).map(tuple),
    ),
)


def up_to_its_messages(dialect: AnthropicMessages, request: Request) -> bytes:
    """The bytes of a request without those that come after its last message."""
    _, _, tail = dialect.encode(replace(request, messages=())).rpartition(b'"messages":[')
    return dialect.encode(request).removesuffix(tail)


@given(st.lists(messages, min_size=1, max_size=8), any_text, st.booleans(), st.booleans(), st.booleans())
def test_an_encoded_turn_up_to_its_last_message_is_a_prefix_of_the_next_turn(
    story: list[Message], system: str, with_tools: bool, streams: bool, strict: bool
) -> None:
    tools = (ToolSpec("look", "Look it up", {"type": "object", "properties": {}}),) if with_tools else ()
    dialect = AnthropicMessages(strict_schema=strict)
    first = Request(Prompt(system, tools), (story[0],), "m", Sampling(temperature=0.5), stream=streams)
    before = b""
    for number in range(1, len(story) + 1):
        turn = replace(first, messages=tuple(story[:number]))
        encoded = dialect.encode(turn)
        assert encoded.startswith(before)
        before = up_to_its_messages(dialect, turn)
        assert before.endswith(b"}")
        last = replace(turn, may_call_tools=False, answer_schema={"type": "object"})
        assert dialect.encode(last).startswith(before)
        assert len(orjson.loads(encoded)["messages"]) == number


@given(st.lists(messages, min_size=1, max_size=4), any_text, st.booleans())
def test_encoded_requests_satisfy_the_rules_of_the_api(story: list[Message], system: str, strict: bool) -> None:
    asked = Request(Prompt(system), tuple(story), "m", Sampling())
    body = orjson.loads(AnthropicMessages(strict_schema=strict).encode(asked))
    assert all(block["text"].strip() for block in body.get("system", []))
    for message in body["messages"]:
        if message["role"] == "assistant":
            assert message["content"]
            assert message["content"][-1]["type"] in ("text", "tool_use")
            assert all(block["text"].strip() for block in message["content"] if block["type"] == "text")
            assert all(isinstance(block["input"], dict) for block in message["content"] if block["type"] == "tool_use")
