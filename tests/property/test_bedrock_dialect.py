"""The Bedrock Converse dialect for any chunking, any conversation and any nonsense."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeVar

import orjson
from botocore.session import Session  # type: ignore[import-untyped]
from botocore.validate import ParamValidator  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st
from tests.support.bedrock_server import Said, event, events, exception, raw_frame
from tests.support.corrupted_json import json_values, paths, pieces, replaced, until_it_fails

from batch_agent.backends.dialects.bedrock.decoder import BedrockStreamDecoder, decode_reply
from batch_agent.backends.dialects.bedrock.encoder import BedrockConverse
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

T = TypeVar("T")
SERVICE = Session().get_service_model("bedrock-runtime")
CLAUDE = "eu.anthropic.claude-opus-4-6-v1"

cuts = st.lists(st.integers(0, 4000), max_size=12)
texts = st.text(max_size=12)


def decode(chunks: Iterable[bytes]) -> Iterator[Delta]:
    decoder = BedrockStreamDecoder()
    for chunk in chunks:
        yield from decoder.feed(chunk)
    if not decoder.ended:
        yield from decoder.close()


indices = st.integers(0, 2)
said = st.one_of(
    st.builds(lambda text: {"text": text}, texts),
    st.builds(lambda text: {"toolUse": {"input": text}}, texts),
    st.builds(
        lambda name, text: {"reasoningContent": {name: text}},
        st.sampled_from(["text", "signature", "redactedContent"]),
        texts,
    ),
)
stream_frames = st.one_of(
    st.builds(
        lambda index, delta: event("contentBlockDelta", {"contentBlockIndex": index, "delta": delta}), indices, said
    ),
    st.builds(
        lambda index, name: event(
            "contentBlockStart",
            {"contentBlockIndex": index, "start": {"toolUse": {"toolUseId": f"t{index}", "name": name}}},
        ),
        indices,
        st.sampled_from(["look", "find", ""]),
    ),
    st.builds(lambda index: event("contentBlockStop", {"contentBlockIndex": index}), indices),
    st.builds(lambda reason: event("messageStop", {"stopReason": reason}), st.sampled_from(["end_turn", "max_tokens"])),
    st.builds(lambda count: event("metadata", {"usage": {"inputTokens": count}}), st.integers(0, 9)),
    st.builds(event, st.sampled_from(["contentBlockDelta", "messageStop", "metadata", "new"]), json_values),
    st.builds(raw_frame, st.dictionaries(st.text("ab:-", max_size=3), texts, max_size=2), st.binary(max_size=8)),
    st.sampled_from([exception("throttlingException", "boom"), b"\0\0\0\x10", event("messageStart", {})[:-1] + b"!"]),
)


@given(st.lists(stream_frames, max_size=10), cuts)
def test_the_deltas_of_a_stream_are_the_same_for_any_chunking(frames: list[bytes], at: list[int]) -> None:
    data = b"".join(frames)
    whole = until_it_fails(lambda: decode([data]))
    assert until_it_fails(lambda: decode(pieces(data, at))) == whole
    assert until_it_fails(lambda: decode(data[i : i + 1] for i in range(len(data)))) == whole
    assert isinstance(whole[-1], Finished | str)
    assert not any(isinstance(delta, Finished) for delta in whole[:-1])


@given(st.binary(max_size=60), cuts)
def test_any_bytes_are_decoded_or_are_a_backend_error(data: bytes, at: list[int]) -> None:
    whole = until_it_fails(lambda: decode([data]))
    assert isinstance(whole[-1], str)
    assert until_it_fails(lambda: decode(pieces(data, at))) == whole
    assert isinstance(until_it_fails(lambda: iter(decode_reply(data)))[-1], Finished | str)


calls_said = st.builds(
    lambda key, name: {"toolUse": {"toolUseId": "t1", "name": name, "input": {"key": key}}},
    json_values,
    st.sampled_from(["look", "find"]),
)
blocks = st.one_of(
    st.builds(lambda text: {"text": text}, texts),
    calls_said,
    st.builds(lambda text: {"reasoningContent": {"reasoningText": {"text": text, "signature": "c2ln"}}}, texts),
    st.just({"reasoningContent": {"redactedContent": "cmVk"}}),
)


@given(st.lists(blocks, max_size=4), st.sampled_from(["end_turn", "tool_use", "max_tokens", "content_filtered"]))
def test_an_answer_is_the_same_whether_it_was_streamed_or_not(content: list[dict[str, Any]], stop: str) -> None:
    answer = Said(content, stop)
    body = {"output": {"message": {"content": content}}, "stopReason": stop, "usage": answer.usage}
    assert joined(list(decode([b"".join(events(answer))]))) == joined(decode_reply(orjson.dumps(body)))


def joined(deltas: list[Delta]) -> tuple[str, list[tuple[str, str, str]], list[ToolCall], Delta]:
    thoughts, thinking = [], ""
    for delta in deltas:
        if isinstance(delta, ReasoningDelta):
            thinking += delta.text
            if delta.signature or delta.redacted:
                thoughts.append((thinking, delta.signature, delta.redacted))
                thinking = ""
    return (
        "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)),
        thoughts,
        [delta.call for delta in deltas if isinstance(delta, CallDelta)],
        deltas[-1],
    )


REPLY = {
    "output": {
        "message": {
            "role": "assistant",
            "content": [
                {"text": "a"},
                {"reasoningContent": {"reasoningText": {"text": "b", "signature": "c"}}},
                {"reasoningContent": {"redactedContent": "cmVk"}},
                {"toolUse": {"toolUseId": "t", "name": "n", "input": {"key": 1}}},
            ],
        }
    },
    "stopReason": "tool_use",
    "usage": {"inputTokens": 1, "outputTokens": 2, "cacheReadInputTokens": 3, "cacheWriteInputTokens": 4},
}
EVENTS: list[tuple[str, dict[str, Any]]] = [
    ("contentBlockStart", {"contentBlockIndex": 0, "start": {"toolUse": {"toolUseId": "t", "name": "n"}}}),
    ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"toolUse": {"input": "{}"}}}),
    ("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"text": "a"}}),
    ("contentBlockDelta", {"contentBlockIndex": 2, "delta": {"reasoningContent": {"signature": "s"}}}),
    ("contentBlockStop", {"contentBlockIndex": 0}),
    ("messageStop", {"stopReason": "tool_use"}),
    ("metadata", {"usage": REPLY["usage"]}),
]


@given(st.sampled_from(paths(REPLY)), json_values)
def test_any_corruption_of_an_answer_is_decoded_or_is_a_backend_error(path: tuple[Any, ...], nonsense: Any) -> None:
    sound(until_it_fails(lambda: iter(decode_reply(orjson.dumps(replaced(REPLY, path, nonsense))))))


@given(st.integers(0, len(EVENTS) - 1), st.data(), json_values)
def test_any_corruption_of_a_stream_is_decoded_or_is_a_backend_error(
    number: int, data: st.DataObject, nonsense: Any
) -> None:
    told = list(EVENTS)
    name, payload = told[number]
    told[number] = (name, replaced(payload, data.draw(st.sampled_from(paths(payload))), nonsense))
    sound(until_it_fails(lambda: decode([event(name, payload) for name, payload in told])))


def sound(found: list[Delta | str]) -> None:
    assert isinstance(found[-1], Finished | str)
    for delta in found:
        if isinstance(delta, CallDelta):
            assert all(isinstance(part, str) for part in (delta.call.id, delta.call.name, delta.call.arguments))


any_text = st.text(st.characters(exclude_categories=()), max_size=10)
calls = st.builds(ToolCall, any_text | st.just("x" * 99), any_text, any_text | st.just('{ "key": 1 }'))
thoughts = st.builds(Thought, any_text, any_text) | st.just(Thought(redacted="cmVk"))
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(User, any_text),
    st.builds(Assistant, any_text, st.lists(calls, max_size=2).map(tuple), st.lists(thoughts, max_size=2).map(tuple)),
    st.builds(
        ToolResults, st.lists(st.builds(ToolResult, calls, any_text, st.booleans()), min_size=1, max_size=2).map(tuple)
    ),
)
stories = st.lists(messages, min_size=1, max_size=8)
models = st.sampled_from([CLAUDE, "us.amazon.nova-lite-v1:0", "meta.llama3-3-70b-instruct-v1:0"])


def first_turn(story: list[Message], system: str, with_tools: bool, model: str) -> Request:
    tools = (ToolSpec("look", "Look it up", {"type": "object", "properties": {}}),) if with_tools else ()
    return Request(Prompt(system, tools), (story[0],), model, Sampling(temperature=0.5))


@given(stories, any_text, st.booleans(), st.booleans(), models)
def test_an_encoded_turn_up_to_its_last_block_is_a_prefix_of_the_next_turn(
    story: list[Message], system: str, with_tools: bool, streams: bool, model: str
) -> None:
    dialect = BedrockConverse()
    first = first_turn(story, system, with_tools, model)
    before = b""
    for number in range(1, len(story) + 1):
        turn = replace(first, messages=tuple(story[:number]))
        encoded = dialect.encode(turn)
        assert encoded.startswith(before)
        before = encoded.removesuffix(b"]}]}")
        last = replace(turn, may_call_tools=False, stream=streams, answer_schema={"type": "object"})
        assert dialect.encode(last).startswith(before)


@given(stories, any_text, st.booleans(), models)
def test_any_conversation_is_valid_for_the_service_model(
    story: list[Message], system: str, with_tools: bool, model: str
) -> None:
    request = replace(first_turn(story, system, with_tools, model), messages=tuple(story))
    body = orjson.loads(BedrockConverse().encode(request))
    shape = SERVICE.operation_model("Converse").input_shape
    report = ParamValidator().validate({"modelId": model, **body}, shape)
    assert not report.has_errors(), report.generate_report()
    roles = [message["role"] for message in body["messages"]]
    assert all(one != other for one, other in pairwise(roles))
    content = [block for message in body["messages"] for block in message["content"]]
    assert sum("cachePoint" in block for block in [*content, *body.get("system", [])]) <= 4
    known = re.compile(SERVICE.shape_for("ToolUseId").metadata["pattern"])
    for block in content:
        assert block.get("text", "some").strip()
        for part in ("toolUse", "toolResult"):
            if part in block:
                assert known.fullmatch(block[part]["toolUseId"])
                assert len(block[part]["toolUseId"]) <= 64
        if "toolUse" in block:
            assert isinstance(block["toolUse"]["input"], dict)
            assert re.fullmatch(SERVICE.shape_for("ToolName").metadata["pattern"], block["toolUse"]["name"])
        if "toolResult" in block:
            assert block["toolResult"]["content"][0]["text"].strip()
