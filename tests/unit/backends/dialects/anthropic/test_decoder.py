"""What Anthropic and its lookalikes answer, as deltas."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest

from batch_agent import BackendError, ErrorKind
from batch_agent.backends.dialects.anthropic.decoder import AnthropicStreamDecoder, decode_reply
from batch_agent.core.messages import ToolCall
from batch_agent.core.requests import CallDelta, Delta, Finished, ReasoningDelta, TextDelta, Usage

USAGE = {"input_tokens": 5, "cache_read_input_tokens": 40, "cache_creation_input_tokens": 300, "output_tokens": 7}


def plain(*blocks: Any, stop: Any = "end_turn", **body: Any) -> list[Delta]:
    answer = {"id": "msg_1", "type": "message", "role": "assistant", "content": list(blocks), "stop_reason": stop}
    return decode_reply(orjson.dumps({**answer, **body}))


def event(kind: str, **body: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **body}))


def begun(usage: Any = None) -> bytes:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "stop_reason": None}
    return event("message_start", message={**message, "content": [], "usage": usage})


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> bytes:
    return b"".join(
        [
            event("content_block_start", index=index, content_block=start),
            *(event("content_block_delta", index=index, delta=delta) for delta in deltas),
            event("content_block_stop", index=index),
        ]
    )


def text(index: int, *pieces: str) -> bytes:
    return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))


def call(index: int, *pieces: str, **start: Any) -> bytes:
    opening = {"type": "tool_use", "id": f"toolu_{index}", "name": "look", "input": {}, **start}
    return block(index, opening, *({"type": "input_json_delta", "partial_json": piece} for piece in pieces))


def stop(reason: Any, usage: Any = None) -> bytes:
    return event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=usage)


DONE = event("message_stop")


def streamed(*chunks: bytes) -> list[Delta]:
    decoder = AnthropicStreamDecoder()
    deltas = [delta for data in chunks for delta in decoder.feed(data)]
    return deltas if decoder.ended else [*deltas, *decoder.close()]


def calls_of(deltas: Sequence[Delta]) -> list[ToolCall]:
    return [delta.call for delta in deltas if isinstance(delta, CallDelta)]


def test_a_plain_answer_is_decoded() -> None:
    deltas = plain({"type": "text", "text": "Hello"}, {"type": "text", "text": " there"}, usage=USAGE)
    assert deltas == [TextDelta("Hello"), TextDelta(" there"), Finished("stop", Usage(345, 40, 7, 300))]


def test_a_streamed_answer_is_decoded() -> None:
    deltas = streamed(
        begun({**USAGE, "output_tokens": 1}),
        event("ping"),
        text(0, "Hel", "", "lo"),
        stop("end_turn", {"output_tokens": 7}),
        DONE,
    )
    assert deltas == [TextDelta("Hel"), TextDelta("lo"), Finished("stop", Usage(345, 40, 7, 300))]


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        (None, Usage()),
        ({}, Usage()),
        ({"input_tokens": 5}, Usage(5)),
        ({"input_tokens": 5, "cache_read_input_tokens": None, "output_tokens": 2}, Usage(5, 0, 2)),
        ({"cache_read_input_tokens": 4}, Usage(4, 4)),
        ({"cache_creation_input_tokens": 4, "cache_creation": {"ephemeral_5m_input_tokens": 4}}, Usage(4, written=4)),
        (
            {
                "cache_creation_input_tokens": 9,
                "cache_creation": {"ephemeral_5m_input_tokens": 4, "ephemeral_1h_input_tokens": 5},
            },
            Usage(9, written=4, written_hour=5),
        ),
        ({"cache_creation": {"ephemeral_1h_input_tokens": 5}}, Usage(5, written_hour=5)),
        ({"cache_creation_input_tokens": 4, "cache_creation": "odd"}, Usage(4, written=4)),
        ({"input_tokens": "5", "output_tokens": [1]}, Usage()),
        ("odd", Usage()),
    ],
)
def test_only_reported_usage_is_counted(usage: Any, counted: Usage) -> None:
    assert plain({"type": "text", "text": "a"}, usage=usage)[-1] == Finished("stop", counted)
    unfinished = replace(counted, output=0)  # what a message begins with is no count of what it came to
    assert streamed(begun(usage), stop("end_turn"), DONE)[-1] == Finished("stop", unfinished)
    assert streamed(begun(), stop("end_turn", usage), DONE)[-1] == Finished("stop", counted)


@pytest.mark.parametrize(
    ("later", "counted"),
    [
        ({"output_tokens": 9}, Usage(345, 40, 9, 300)),
        ({"input_tokens": None, "cache_read_input_tokens": None, "output_tokens": 9}, Usage(345, 40, 9, 300)),
        ({"input_tokens": 45, "cache_read_input_tokens": 300, "cache_creation_input_tokens": 0}, Usage(345, 300)),
        (None, Usage(345, 40, written=300)),
    ],
)
def test_later_usage_replaces_only_the_fields_it_reports(later: Any, counted: Usage) -> None:
    assert streamed(begun(USAGE), stop("end_turn", later), DONE)[-1] == Finished("stop", counted)


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("pause_turn", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refusal"),
        ("tool_use", "calls"),
        ("something_new", "stop"),
    ],
)
def test_a_stop_reason_becomes_a_finish_reason(reason: str, finish: str) -> None:
    ended = Finished(finish, Usage())  # type: ignore[arg-type]
    assert plain({"type": "text", "text": "a"}, stop=reason) == [TextDelta("a"), ended]
    assert streamed(begun(), text(0, "a"), stop(reason), DONE) == [TextDelta("a"), ended]


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("tool_use", "calls"),
        ("end_turn", "calls"),
        ("pause_turn", "calls"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refusal"),
    ],
)
def test_an_answer_with_calls_ends_in_calls_unless_it_was_cut_off_or_refused(reason: str, finish: str) -> None:
    ended = Finished(finish, Usage())  # type: ignore[arg-type]
    assert plain({"type": "tool_use", "id": "c", "name": "look", "input": {"q": 1}}, stop=reason)[-1] == ended
    assert streamed(begun(), call(0, '{"q":1}'), stop(reason), DONE)[-1] == ended


def test_a_reply_that_the_server_aborted_is_an_error() -> None:
    # vLLM says null for a request that it aborted.
    with pytest.raises(BackendError, match="aborted the reply") as raised:
        plain({"type": "text", "text": "half an ans"}, stop=None)
    assert raised.value.retryable
    with pytest.raises(BackendError) as raised:
        streamed(begun(), text(0, "half an ans"), stop(None), DONE)
    assert raised.value.retryable


def test_reasoning_keeps_its_signatures() -> None:
    ended = [TextDelta("42"), Finished("stop", Usage())]
    thinking = {"type": "thinking", "thinking": "Hm. So.", "signature": "EqQ="}
    assert plain(thinking, {"type": "text", "text": "42"}) == [ReasoningDelta("Hm. So.", "EqQ="), *ended]
    thought = block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "Hm. "},
        {"type": "thinking_delta", "thinking": "So."},
        {"type": "signature_delta", "signature": "EqQ="},
    )
    assert streamed(begun(), thought, text(1, "42"), stop("end_turn"), DONE) == [
        ReasoningDelta("Hm. "),
        ReasoningDelta("So."),
        ReasoningDelta(signature="EqQ="),
        *ended,
    ]


def test_reasoning_may_be_unsigned_omitted_or_redacted() -> None:
    unsigned = {"type": "thinking", "thinking": "Hm."}
    left_out = {"type": "thinking", "thinking": "", "signature": "EqQ="}
    hidden = {"type": "redacted_thinking", "data": "secret"}
    nothing = {"type": "thinking", "thinking": "", "signature": ""}
    thoughts = [ReasoningDelta("Hm."), ReasoningDelta(signature="EqQ="), ReasoningDelta(redacted="secret")]
    blocks = [unsigned, left_out, hidden, nothing]
    assert plain(*blocks)[:-1] == thoughts
    assert streamed(*(block(n, start) for n, start in enumerate(blocks)), stop("end_turn"))[:-1] == thoughts


@pytest.mark.parametrize(
    ("given", "arguments"),
    [({"q": [1, 2.0]}, '{"q":[1,2.0]}'), ({}, "{}"), (None, "{}"), ('{"q":  1}', '{"q":  1}'), ([1], "[1]")],
)
def test_arguments_sent_as_an_object_are_decoded(given: Any, arguments: str) -> None:
    expected = [ToolCall("toolu_0", "look", arguments)]
    opening = {"type": "tool_use", "id": "toolu_0", "name": "look", "input": given}
    assert calls_of(plain(opening, stop="tool_use")) == expected
    assert calls_of(streamed(begun(), call(0, input=given), stop("tool_use"), DONE)) == expected
    assert calls_of(streamed(begun(), call(0, "", input=given), stop("tool_use"), DONE)) == expected


def test_a_call_in_pieces_is_delivered_whole_with_the_models_own_arguments() -> None:
    deltas = streamed(begun(), text(0, "I look."), call(1, "", '{"q":', '  "x"}'), stop("tool_use"), DONE)
    assert deltas == [
        TextDelta("I look."),
        CallDelta(ToolCall("toolu_1", "look", '{"q":  "x"}')),
        Finished("calls", Usage()),
    ]


def test_streamed_argument_pieces_replace_the_initial_arguments() -> None:
    deltas = streamed(begun(), call(0, '{"q": 2}', input={"q": 1}), stop("tool_use"), DONE)
    assert calls_of(deltas) == [ToolCall("toolu_0", "look", '{"q": 2}')]


def test_a_call_is_delivered_as_soon_as_it_is_complete() -> None:
    decoder = AnthropicStreamDecoder()
    assert calls_of(list(decoder.feed(begun() + call(0, '{"q": 1}')))) == [ToolCall("toolu_0", "look", '{"q": 1}')]
    assert calls_of(list(decoder.feed(call(1)))) == []
    opening = event("content_block_start", index=2, content_block={"type": "text", "text": ""})
    assert calls_of(list(decoder.feed(opening))) == [ToolCall("toolu_1", "look", "{}")]


@pytest.mark.parametrize("reason", ["max_tokens", "model_context_window_exceeded"])
def test_a_call_truncated_before_its_arguments_is_not_a_call_without_arguments(reason: str) -> None:
    empty = {"type": "tool_use", "id": "toolu_0", "name": "look", "input": {}}
    cut_off = {**empty, "id": "toolu_1"}
    expected = [ToolCall("toolu_0", "look", "{}"), ToolCall("toolu_1", "look", "")]
    assert calls_of(plain(empty, cut_off, stop=reason)) == expected
    assert calls_of(streamed(begun(), call(0), call(1, ""), stop(reason), DONE)) == expected


def test_a_truncated_call_is_marked_as_truncated() -> None:
    opening = event("content_block_start", index=0, content_block={"type": "tool_use", "id": "c", "name": "look"})
    piece = event("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": '{"q'})
    expected = [CallDelta(ToolCall("c", "look", '{"q')), Finished("length", Usage())]
    assert streamed(begun(), opening, piece, stop("max_tokens"), DONE) == expected


def test_a_call_without_a_name_is_a_protocol_violation() -> None:
    with pytest.raises(BackendError, match="name"):
        plain({"type": "tool_use", "id": "c", "input": {}}, stop="tool_use")
    with pytest.raises(BackendError, match="name"):
        streamed(begun(), call(0, "{}", name=None), stop("tool_use"), DONE)


def test_arguments_nested_too_deeply_are_a_server_error() -> None:
    deep = b"[" * 600 + b"]" * 600
    body = b'{"content":[{"type":"tool_use","name":"look","input":{"q":%b}}],"stop_reason":"tool_use"}' % deep
    with pytest.raises(BackendError, match="deep") as raised:
        decode_reply(body)
    assert raised.value.kind is ErrorKind.SERVER


def test_server_side_tools_and_unknown_blocks_are_ignored() -> None:
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"type": "web_search_result"}]}
    new = {"type": "something_new", "text": "no text", "data": 1}
    assert plain(search, found, new, None, "odd", {"type": "text", "text": "a"})[:-1] == [TextDelta("a")]
    deltas = streamed(
        begun(),
        block(0, search, {"type": "input_json_delta", "partial_json": '{"query": "x"}'}),
        block(1, found),
        block(2, new, {"type": "something_new_delta", "text": "no text"}),
        event("something_new"),
        block(3, {"type": "text", "text": "a"}, {"type": "citations_delta", "citation": {"cited_text": "no"}}),
        stop("end_turn"),
        DONE,
    )
    assert deltas == [TextDelta("a"), Finished("stop", Usage())]


def test_pieces_of_a_server_side_tool_call_are_ignored() -> None:
    opening = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
    deltas = streamed(
        event("content_block_start", index=0, content_block=opening),
        event("content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": "no"}),
        event("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": "{}"}),
        stop("tool_use"),
    )
    assert calls_of(deltas) == [ToolCall("c", "look", "{}")]


def test_events_without_names_are_decoded_and_comments_ignored() -> None:
    chunks = [begun(), b": keep-alive\r\n\r\n", b"data: \n\n", text(0, "a"), stop("end_turn"), DONE]
    lines = b"".join(chunks).split(b"\n")
    unnamed = b"\n".join(line for line in lines if not line.startswith(b"event:"))
    assert streamed(unnamed) == [TextDelta("a"), Finished("stop", Usage())]


def test_a_finished_answer_needs_no_message_stop_event() -> None:
    assert streamed(begun(), text(0, "a"), stop("end_turn"))[-1] == Finished("stop", Usage())


def test_the_finish_reason_is_kept_when_later_usage_is_reported() -> None:
    deltas = streamed(begun(), text(0, "a"), stop("max_tokens"), stop(None, {"output_tokens": 3}), DONE)
    assert deltas[-1] == Finished("length", Usage(output=3))


def test_events_after_the_end_of_a_stream_are_not_read() -> None:
    assert streamed(text(0, "a"), stop("end_turn"), DONE + b"data: [DONE]\n\n")[-1] == Finished("stop", Usage())


@pytest.mark.parametrize("ending", [b"", b"data: {", DONE])
def test_a_stream_without_an_end_is_a_broken_connection(ending: bytes) -> None:
    with pytest.raises(BackendError) as raised:
        streamed(begun(), text(0, "a"), ending)
    assert raised.value.kind is ErrorKind.CONNECTION


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"type": "overloaded_error", "message": "boom"}, ErrorKind.UNAVAILABLE),
        ({"type": "rate_limit_error", "message": "boom"}, ErrorKind.RATE_LIMITED),
        ({"type": "invalid_request_error", "message": "boom"}, ErrorKind.BAD_REQUEST),
        ({"type": "invalid_request_error", "message": "boom: prompt is too long"}, ErrorKind.CONTEXT_OVERFLOW),
        ({"type": "authentication_error", "message": "boom"}, ErrorKind.AUTH),
        ({"type": "api_error", "message": "boom"}, ErrorKind.SERVER),
        ({"type": "internal_error", "message": "boom"}, ErrorKind.SERVER),
        ("boom", ErrorKind.SERVER),
    ],
)
def test_an_error_event_inside_a_stream_is_raised(error: Any, kind: ErrorKind) -> None:
    with pytest.raises(BackendError, match="boom") as raised:
        decode_reply(orjson.dumps({"type": "error", "error": error}))
    assert raised.value.kind is kind
    with pytest.raises(BackendError, match="boom") as raised:
        streamed(begun(), text(0, "a"), event("error", error=error))
    assert raised.value.kind is kind


@pytest.mark.parametrize(
    "said",
    [b'data: {"type": "error"}\n\n', b'event: error\ndata: {"message": "boom"}\n\n', b"event: error\ndata: x\n\n"],
)
def test_a_malformed_error_is_still_an_error(said: bytes) -> None:
    with pytest.raises(BackendError) as raised:
        streamed(begun(), said, stop("end_turn"), DONE)
    assert raised.value.kind is ErrorKind.SERVER


@pytest.mark.parametrize(
    "body", [b"", b"<html>502</html>", b"[]", b"7", b"null", b"{}", b'{"content": "a", "stop_reason": "end_turn"}']
)
def test_a_protocol_violation_is_a_server_error(body: bytes) -> None:
    with pytest.raises(BackendError) as raised:
        decode_reply(body)
    assert raised.value.kind is ErrorKind.SERVER
