"""What servers answer, with all their liberties, as deltas."""

from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from batch_agent import BackendError, ErrorKind
from batch_agent.backends.dialects.openai.decoder import OpenAIStreamDecoder, decode_reply
from batch_agent.core.messages import ToolCall
from batch_agent.core.requests import CallDelta, Delta, Finished, ReasoningDelta, TextDelta, Usage


def plain(message: Any, finish: Any = "stop", **body: Any) -> list[Delta]:
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return decode_reply(orjson.dumps({"choices": [choice], **body}))


def chunk(delta: Any = None, finish: str | None = None, **body: Any) -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}] if delta is not None else []
    return b"data: " + orjson.dumps({"choices": choices, **body}) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def streamed(*chunks: bytes) -> list[Delta]:
    decoder = OpenAIStreamDecoder()
    deltas = [delta for data in chunks for delta in decoder.feed(data)]
    return deltas if decoder.ended else [*deltas, *decoder.close()]


def piece(index: int | None, *, id: str | None = None, name: str | None = None, arguments: Any = None) -> bytes:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    call = {"index": index, "function": function} | ({"id": id} if id else {})
    return chunk({"tool_calls": [call]})


def calls_of(deltas: Sequence[Delta]) -> list[ToolCall]:
    return [delta.call for delta in deltas if isinstance(delta, CallDelta)]


def test_a_plain_answer_is_decoded() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    assert plain({"role": "assistant", "content": "Hello"}, usage=usage) == [
        TextDelta("Hello"),
        Finished("stop", Usage(9, 4, 3)),
    ]


def test_a_streamed_answer_is_decoded() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    deltas = streamed(
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "Hel"}),
        chunk({"content": "lo"}),
        chunk({}, "stop"),
        chunk(usage=usage),
        DONE,
    )
    assert deltas == [TextDelta("Hel"), TextDelta("lo"), Finished("stop", Usage(9, 4, 3))]


def test_tokens_that_came_in_one_chunk_are_one_delta() -> None:
    thoughts = [chunk({"reasoning_content": piece}) for piece in ("h", "m", "m")]
    words = [chunk({"content": piece}) for piece in ("Hel", "", "lo", " you")]
    deltas = streamed(b"".join([*thoughts, *words, chunk({}, "stop"), DONE]))
    assert deltas == [ReasoningDelta("hmm"), TextDelta("Hello you"), Finished("stop", Usage())]


def test_the_contents_of_one_chunk_keep_their_order() -> None:
    call = piece(0, id="c1", name="look", arguments="{}")
    told = [chunk({"content": "a"}), chunk({"reasoning": "b"}), chunk({"content": "c", "reasoning": "d"}), call]
    deltas = streamed(b"".join([*told, chunk({"content": "e"}), chunk({}, "tool_calls"), DONE]))
    said = [TextDelta("a"), ReasoningDelta("bd"), TextDelta("ce")]
    assert deltas == [*said, CallDelta(ToolCall("c1", "look", "{}")), Finished("calls", Usage())]


def test_a_call_ended_by_the_next_one_keeps_its_position_between_texts() -> None:
    first, second = (piece(at, id=f"c{at}", name="look", arguments="{}") for at in range(2))
    told = [chunk({"content": "a"}), first, second, chunk({"content": "b"}), chunk({}, "tool_calls"), DONE]
    calls = [CallDelta(ToolCall(f"c{at}", "look", "{}")) for at in range(2)]
    assert streamed(b"".join(told)) == [
        TextDelta("a"),
        calls[0],
        TextDelta("b"),
        calls[1],
        Finished("calls", Usage()),
    ]


def test_deltas_before_an_error_in_the_same_chunk_are_delivered() -> None:
    deltas = OpenAIStreamDecoder().feed(chunk({"content": "a"}) + chunk({"content": "b"}) + b"data: {\n\n")
    assert next(deltas) == TextDelta("ab")
    with pytest.raises(BackendError):
        next(deltas)


def test_other_fields_of_a_chunk_are_read_after_any_number_of_text_chunks() -> None:
    plain = [chunk({"content": piece}) for piece in "abc"]
    assert streamed(*plain, chunk({"content": "d"}, "length"), DONE)[-2:] == [
        TextDelta("d"),
        Finished("length", Usage()),
    ]
    counted = chunk({"content": "d"}, usage={"prompt_tokens": 7})
    assert streamed(*plain, counted, chunk({}, "stop"), DONE)[-1] == Finished("stop", Usage(7))
    refused = chunk({"content": "d", "refusal": "no"})
    assert streamed(*plain, refused, chunk({}, "stop"), DONE)[-1] == Finished("refusal", Usage())
    both = chunk({"content": "d", "tool_calls": [{"index": 0, "function": {"name": "look"}}]})
    assert calls_of(streamed(*plain, both, chunk({}, "stop"), DONE)) == [ToolCall("", "look", "")]


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        (None, Usage()),
        ({}, Usage()),
        ({"prompt_tokens": 5}, Usage(5)),
        ({"prompt_tokens": 5, "completion_tokens": None, "prompt_tokens_details": None}, Usage(5)),
        ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": None}}, Usage(5)),
        ({"prompt_tokens": 5, "prompt_tokens_details": {"audio_tokens": 1}, "total_tokens": 7}, Usage(5)),
        ({"prompt_tokens": "5", "prompt_tokens_details": [1]}, Usage()),
        ("odd", Usage()),
    ],
)
def test_only_reported_usage_is_counted(usage: Any, counted: Usage) -> None:
    assert plain({"content": "a"}, usage=usage)[-1] == Finished("stop", counted)
    assert streamed(chunk({"content": "a"}, "stop", usage=usage), DONE)[-1] == Finished("stop", counted)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("abc", ["abc"]),
        (None, []),
        ("", []),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "bc"}], ["abc"]),
        (["a", {"type": "image"}, {"text": None}, "bc"], ["abc"]),
        ({"odd": 1}, []),
    ],
)
def test_content_may_be_text_or_parts_or_nothing(content: Any, text: list[str]) -> None:
    expected = [*map(TextDelta, text), Finished("stop", Usage())]
    assert plain({"content": content}) == expected
    assert streamed(chunk({"content": content}, "stop"), DONE) == expected


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("stop", "stop"), ("length", "length"), ("max_tokens", "length"), ("content_filter", "refusal"), ("eos", "stop")],
)
def test_a_finish_reason_is_decoded(reason: str, finish: str) -> None:
    assert plain({"content": "a"}, reason)[-1] == Finished(finish, Usage())  # type: ignore[arg-type]
    assert streamed(chunk({"content": "a"}, reason), DONE)[-1] == Finished(finish, Usage())  # type: ignore[arg-type]


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_a_reply_that_the_server_aborted_is_an_error(reason: str) -> None:
    with pytest.raises(BackendError) as raised:
        plain({"content": "half an ans"}, reason)
    assert raised.value.retryable
    with pytest.raises(BackendError, match=reason):
        streamed(chunk({"content": "half an ans"}), chunk({}, reason), DONE)


def test_a_refusal_finishes_as_refusal_with_its_text() -> None:
    assert plain({"content": None, "refusal": "I will not."}) == [
        TextDelta("I will not."),
        Finished("refusal", Usage()),
    ]
    assert streamed(chunk({"refusal": "I will "}), chunk({"refusal": "not."}), chunk({}, "stop"), DONE) == [
        TextDelta("I will "),
        TextDelta("not."),
        Finished("refusal", Usage()),
    ]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_kept_apart_from_the_answer(name: str) -> None:
    expected = [ReasoningDelta("Hm."), TextDelta("42"), Finished("stop", Usage())]
    assert plain({name: "Hm.", "content": "42"}) == expected
    assert streamed(chunk({name: "Hm."}), chunk({"content": "42"}), chunk({}, "stop"), DONE) == expected


def test_the_text_field_of_legacy_completions_is_read() -> None:
    body = {"choices": [{"text": "old", "finish_reason": "stop"}]}
    assert decode_reply(orjson.dumps(body)) == [TextDelta("old"), Finished("stop", Usage())]
    assert streamed(b"data: " + orjson.dumps(body) + b"\n\n", DONE) == [TextDelta("old"), Finished("stop", Usage())]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"q": 1}', '{"q": 1}'), ({"q": 1}, '{"q":1}'), (None, ""), ("", ""), ([1], "[1]")],
)
def test_arguments_may_be_a_string_or_an_object(arguments: Any, text: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    deltas = plain({"content": None, "tool_calls": [call]}, "tool_calls")
    assert deltas == [CallDelta(ToolCall("c1", "look", text)), Finished("calls", Usage())]


def test_parallel_calls_come_in_order() -> None:
    calls = [{"id": f"c{n}", "function": {"name": "look", "arguments": str(n)}} for n in range(3)]
    assert calls_of(plain({"tool_calls": calls}, "tool_calls")) == [ToolCall(f"c{n}", "look", str(n)) for n in range(3)]


@pytest.mark.parametrize("reason", ["stop", "tool_calls", "function_call", None])
def test_an_answer_with_calls_has_the_finish_reason_calls(reason: str | None) -> None:
    call = {"id": "c1", "function": {"name": "look", "arguments": "{}"}}
    assert plain({"tool_calls": [call]}, reason)[-1] == Finished("calls", Usage())


def test_a_call_in_pieces_is_delivered_whole() -> None:
    deltas = streamed(
        piece(0, id="c1", name="look", arguments=""),
        piece(0, arguments='{"q":'),
        piece(0, arguments=' "x"}'),
        chunk({}, "tool_calls"),
        DONE,
    )
    assert deltas == [CallDelta(ToolCall("c1", "look", '{"q": "x"}')), Finished("calls", Usage())]


def test_a_call_is_delivered_as_soon_as_the_next_one_begins() -> None:
    decoder = OpenAIStreamDecoder()
    assert list(decoder.feed(piece(0, id="c1", name="look", arguments="{}"))) == []
    begun = list(decoder.feed(piece(1, id="c2", name="find", arguments="")))
    assert calls_of(begun) == [ToolCall("c1", "look", "{}")]
    ended = list(decoder.feed(piece(1, arguments="{}") + chunk({}, "tool_calls")))
    assert calls_of(ended) == [ToolCall("c2", "find", "{}")]


def test_calls_with_the_same_index_are_distinguished_by_their_ids() -> None:
    deltas = streamed(
        piece(0, id="c1", name="look", arguments='{"q": 1}'),
        piece(0, id="c2", name="look", arguments='{"q": 2}'),
        chunk({}, "tool_calls"),
        DONE,
    )
    assert calls_of(deltas) == [ToolCall("c1", "look", '{"q": 1}'), ToolCall("c2", "look", '{"q": 2}')]


@pytest.mark.parametrize("again", ["c1", "made-up"])
def test_pieces_with_a_repeated_or_new_id_still_belong_to_their_call(again: str) -> None:
    deltas = streamed(
        piece(None, id="c1", name="look", arguments='{"q":'), piece(None, id=again, arguments="1}"), chunk({}, "stop")
    )
    assert [call.arguments for call in calls_of(deltas)] == ['{"q":1}']


def test_streamed_arguments_may_be_an_object() -> None:
    deltas = streamed(piece(0, id="c1", name="look", arguments={"q": 1}), chunk({}, "tool_calls"), DONE)
    assert calls_of(deltas) == [ToolCall("c1", "look", '{"q":1}')]


def test_a_call_without_a_name_is_a_protocol_violation() -> None:
    with pytest.raises(BackendError, match="name"):
        streamed(piece(0, id="c1", arguments="{}"), chunk({}, "tool_calls"), DONE)


def test_a_call_truncated_by_the_token_limit_is_marked_as_truncated() -> None:
    deltas = streamed(piece(0, id="c1", name="look", arguments='{"q'), chunk({}, "length"), DONE)
    assert deltas[-1] == Finished("length", Usage())


def test_comments_blank_data_and_other_events_are_ignored() -> None:
    deltas = streamed(
        b": keep-alive\r\n\r\n",
        b"data: \n\n",
        b'event: another\ndata: {"choice_index":0,"tool_call":{"index":0}}\n\n',
        chunk({"content": "a"}),
        b": OPENROUTER PROCESSING\n\n",
        chunk({}, "stop"),
        DONE,
    )
    assert deltas == [TextDelta("a"), Finished("stop", Usage())]


def test_a_call_dispatched_ahead_is_delivered_once() -> None:
    first, second = (
        {"index": at, "id": f"c{at}", "type": "function", "function": {"name": "look", "arguments": f"[{at}]"}}
        for at in range(2)
    )
    events: list[bytes] = []
    for call in (first, second):
        ahead = orjson.dumps({"choice_index": 0, "tool_call": call})
        events.append(b"event: tool_call_dispatch\ndata: " + ahead + b"\n\n")
        events.append(chunk({"tool_calls": [call]}))
    deltas = streamed(*events, chunk({}, "tool_calls"), DONE)
    calls = [CallDelta(ToolCall(f"c{at}", "look", f"[{at}]")) for at in range(2)]
    assert deltas == [*calls, Finished("calls", Usage())]
    assert streamed(events[0], chunk({}, "stop"), DONE) == [calls[0], Finished("calls", Usage())]


def test_a_finished_answer_needs_no_done_event() -> None:
    assert streamed(chunk({"content": "a"}), chunk({}, "stop"))[-1] == Finished("stop", Usage())


def test_events_after_done_are_not_read() -> None:
    assert streamed(chunk({"content": "a"}, "stop"), DONE + b"data: garbage\n\n")[-1] == Finished("stop", Usage())
    again = chunk({"content": "a"})
    assert streamed(again, chunk({}, "stop"), DONE, again, b"data: garbage\n\n")[-1] == Finished("stop", Usage())


@pytest.mark.parametrize("ending", [DONE, b"", b"data: {"])
def test_a_stream_without_an_end_is_a_broken_connection(ending: bytes) -> None:
    with pytest.raises(BackendError) as raised:
        streamed(chunk({"content": "a"}), ending)
    assert raised.value.kind is ErrorKind.CONNECTION


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "boom"}, ErrorKind.SERVER),
        ("boom", ErrorKind.SERVER),
        ({"message": "boom", "code": 429}, ErrorKind.RATE_LIMITED),
        ({"message": "boom", "code": 400}, ErrorKind.BAD_REQUEST),
        ({"message": "boom", "code": "server_error"}, ErrorKind.SERVER),
        ({"message": "boom: maximum context length is 8", "code": 400}, ErrorKind.CONTEXT_OVERFLOW),
        ({"message": "boom: maximum context length is 8"}, ErrorKind.CONTEXT_OVERFLOW),
    ],
)
def test_an_error_event_inside_a_stream_is_raised(error: Any, kind: ErrorKind) -> None:
    with pytest.raises(BackendError, match="boom") as raised:
        decode_reply(orjson.dumps({"error": error}))
    assert raised.value.kind is kind
    with pytest.raises(BackendError, match="boom") as raised:
        streamed(chunk({"content": "a"}), b"data: " + orjson.dumps({"error": error}) + b"\n\n", DONE)
    assert raised.value.kind is kind


@pytest.mark.parametrize(
    "body", [b"", b"<html>502</html>", b"[]", b"7", b"null", b"{}", b'{"choices": []}', b'{"choices": [null]}', b"\xff"]
)
def test_a_protocol_violation_is_a_server_error(body: bytes) -> None:
    with pytest.raises(BackendError) as raised:
        decode_reply(body)
    assert raised.value.kind is ErrorKind.SERVER
