"""Answers of Bedrock's Converse API."""

import struct
import sys
from typing import Any
from zlib import crc32

import orjson
import pytest
from tests.support.bedrock_server import Said, event, events, exception, frame

from batch_agent import BackendError, ErrorKind
from batch_agent.backends.dialects.bedrock.decoder import BedrockStreamDecoder, decode_reply
from batch_agent.core.messages import ToolCall
from batch_agent.core.requests import CallDelta, Delta, Finished, FinishReason, ReasoningDelta, TextDelta, Usage

THOUGHT = {"reasoningContent": {"reasoningText": {"text": "Hm. Yes.", "signature": "c2ln"}}}
REDACTED = {"reasoningContent": {"redactedContent": "cmVk"}}
USE = {"toolUse": {"toolUseId": "t1", "name": "look", "input": {"key": "a"}}}
USAGE = {
    "inputTokens": 5,
    "outputTokens": 2,
    "totalTokens": 37,
    "cacheReadInputTokens": 20,
    "cacheWriteInputTokens": 10,
}


def plain(said: Said) -> list[Delta]:
    body = {"output": {"message": {"content": said.blocks}}, "stopReason": said.stop, "usage": said.usage}
    return decode_reply(orjson.dumps(body))


def streamed(*frames: bytes) -> list[Delta]:
    decoder = BedrockStreamDecoder()
    found = list(decoder.feed(b"".join(frames)))
    return found if decoder.ended else [*found, *decoder.close()]


def test_a_plain_answer_with_all_block_types_is_decoded() -> None:
    assert plain(Said([THOUGHT, REDACTED, {"text": "Let me see."}, USE], "tool_use", USAGE)) == [
        ReasoningDelta("Hm. Yes.", "c2ln"),
        ReasoningDelta(redacted="cmVk"),
        TextDelta("Let me see."),
        CallDelta(ToolCall("t1", "look", '{"key":"a"}')),
        Finished("calls", Usage(input=35, cached=20, output=2, written=10)),
    ]


def test_a_streamed_answer_with_all_block_types_is_decoded() -> None:
    assert streamed(*events(Said([THOUGHT, REDACTED, {"text": "Go on."}, USE], "tool_use", USAGE))) == [
        ReasoningDelta("Hm. "),
        ReasoningDelta("Yes."),
        ReasoningDelta(signature="c2ln"),
        ReasoningDelta(redacted="cmVk"),
        TextDelta("Go "),
        TextDelta("on."),
        CallDelta(ToolCall("t1", "look", '{"key":"a"}')),
        Finished("calls", Usage(input=35, cached=20, output=2, written=10)),
    ]


@pytest.mark.parametrize(
    ("stop", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("tool_use", "calls"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("guardrail_intervened", "refusal"),
        ("content_filtered", "refusal"),
        ("malformed_model_output", "stop"),
        ("malformed_tool_use", "stop"),
        ("something new", "stop"),
    ],
)
def test_a_stop_reason_becomes_a_finish_reason(stop: str, finish: FinishReason) -> None:
    said = Said([{"text": "a"}], stop)
    for deltas in (plain(said), streamed(*events(said))):
        assert isinstance(deltas[-1], Finished)
        assert deltas[-1].reason == finish


def test_a_call_is_delivered_as_soon_as_its_block_ends() -> None:
    decoder = BedrockStreamDecoder()
    start, *_, stop, _usage = list(events(Said([USE], "tool_use")))[1:]
    pieces = [
        event("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"toolUse": {"input": piece}}})
        for piece in ('{"key"', ":", '"a"}')
    ]
    assert list(decoder.feed(start + b"".join(pieces))) == []
    assert list(decoder.feed(event("contentBlockStop", {"contentBlockIndex": 0}))) == [
        CallDelta(ToolCall("t1", "look", '{"key":"a"}'))
    ]
    assert list(decoder.feed(stop)) == []


def test_a_call_without_a_block_end_is_delivered_at_the_message_stop() -> None:
    start = event("contentBlockStart", {"contentBlockIndex": 3, "start": {"toolUse": {"toolUseId": "t", "name": "go"}}})
    found = streamed(start, event("messageStop", {"stopReason": "tool_use"}))
    assert found == [CallDelta(ToolCall("t", "go", "")), Finished("calls", Usage())]


def test_the_finished_delta_waits_for_the_usage_after_the_message_stop() -> None:
    *before, stop, metadata = events(Said([{"text": "a"}]))
    decoder = BedrockStreamDecoder()
    assert list(decoder.feed(b"".join(before) + stop)) == [TextDelta("a")]
    assert not decoder.ended
    assert list(decoder.feed(metadata + b"whatever comes then")) == [Finished("stop", Usage(7, 0, 3))]
    assert decoder.ended


def test_a_stream_without_usage_ends_with_its_last_byte() -> None:
    *frames, _metadata = events(Said([{"text": "a"}]))
    assert streamed(*frames) == [TextDelta("a"), Finished("stop", Usage())]


def test_a_stream_that_ends_early_is_a_broken_connection() -> None:
    *frames, _stop, _metadata = events(Said([{"text": "a"}]))
    with pytest.raises(BackendError) as raised:
        streamed(*frames)
    assert raised.value.kind is ErrorKind.CONNECTION


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("throttlingException", ErrorKind.RATE_LIMITED),
        ("modelStreamErrorException", ErrorKind.SERVER),
        ("internalServerException", ErrorKind.SERVER),
        ("serviceUnavailableException", ErrorKind.UNAVAILABLE),
        ("validationException", ErrorKind.BAD_REQUEST),
        ("neverHeardOfException", ErrorKind.SERVER),
    ],
)
def test_an_exception_event_is_raised_by_its_name(name: str, kind: ErrorKind) -> None:
    first, *_ = events(Said([{"text": "a"}]))
    with pytest.raises(BackendError, match=f"{name}: Sorry") as raised:
        streamed(first, exception(name, "Sorry"))
    assert raised.value.kind is kind


def test_an_error_frame_has_its_message_in_its_headers() -> None:
    with pytest.raises(BackendError, match="InternalFailure: Oh no") as raised:
        streamed(frame(b"", message_type="error", error_code="InternalFailure", error_message="Oh no"))
    assert raised.value.kind is ErrorKind.SERVER


def test_an_exception_without_a_body_is_still_an_error() -> None:
    with pytest.raises(BackendError) as raised:
        streamed(frame(b"", message_type="exception", exception_type="throttlingException"))
    assert raised.value.kind is ErrorKind.RATE_LIMITED


def sealed(total: int, headers: int, rest: bytes) -> bytes:
    """A frame with these lengths, and sums that are right for it."""
    prelude = struct.pack("!II", total, headers)
    message = prelude + struct.pack("!I", crc32(prelude)) + rest
    return message + struct.pack("!I", crc32(message))


@pytest.mark.parametrize(
    "damaged",
    [
        b"HTTP/1.1 500 Oh no",
        event("messageStart", {})[:-1] + b"\0",
        sealed(0, 0, b""),
        sealed(16, 3, b""),
        sealed(21, 9, b"\x01a\x06\x00\x04"),
        sealed(22, 6, b"\x01a\x63abc"),
        sealed(22, 6, b"\x05abc\x07\x00"),
        sealed(19, 3, b"\x01\xff\x00"),
    ],
)
def test_a_damaged_frame_is_a_server_error(damaged: bytes) -> None:
    with pytest.raises(BackendError, match="stream is corrupt") as raised:
        streamed(damaged)
    assert raised.value.kind is ErrorKind.SERVER


def test_an_unknown_event_is_ignored() -> None:
    first, *rest = events(Said([{"text": "a"}]))
    assert streamed(first, event("sparkles", b""), *rest) == streamed(first, *rest)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"output": {"message": null}}', b'{"message": "no"}'])
def test_an_answer_of_another_format_is_a_server_error(body: bytes) -> None:
    with pytest.raises(BackendError) as raised:
        decode_reply(body)
    assert raised.value.kind is ErrorKind.SERVER


def test_a_call_without_a_name_is_a_server_error() -> None:
    with pytest.raises(BackendError, match="without a name"):
        plain(Said([{"toolUse": {"toolUseId": "t", "input": {}}}]))


def test_without_botocore_the_stream_error_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.eventstream", None)
    with pytest.raises(BackendError, match=r"pip install 'batch-agent\[bedrock\]'"):
        BedrockStreamDecoder()


@pytest.mark.parametrize(
    ("details", "written"),
    [
        ([{"ttl": "1h", "inputTokens": 6}, {"ttl": "5m", "inputTokens": 4}], (4, 6)),
        ([{"ttl": "5m", "inputTokens": 10}], (10, 0)),
        ([{"ttl": "1h", "inputTokens": 60}], (0, 10)),
        (["odd", None, {"ttl": "1h", "inputTokens": "6"}], (10, 0)),
        ("odd", (10, 0)),
    ],
)
def test_tokens_that_were_written_for_an_hour_are_told_apart(details: object, written: tuple[int, int]) -> None:
    usage: dict[str, Any] = {**USAGE, "cacheDetails": details}
    said = Said([{"text": "a"}], "end_turn", usage)
    for found in (plain(said)[-1], streamed(*events(said))[-1]):
        assert found == Finished("stop", Usage(35, 20, 2, *written))
