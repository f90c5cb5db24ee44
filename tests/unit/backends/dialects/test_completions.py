"""Many prompts in one request: how they look on the wire, and whose answer is whose."""

from typing import Any

import orjson
import pytest

from batch_agent import BackendError, ErrorKind, SpecError
from batch_agent.backends.dialects.completions.decoder import (
    BatchReply,
    BatchStreamDecoder,
    PromptAnswer,
    PromptDelta,
    PromptEvent,
    PromptFinished,
    decode_batch_reply,
)
from batch_agent.backends.dialects.completions.encoder import encode, encode_chats
from batch_agent.core.requests import Sampling, Usage

SHORT = Sampling(max_tokens=12)
DONE = b"data: [DONE]\n\n"


def sent(*prompts: str, sampling: Sampling = SHORT, **options: bool) -> Any:
    return orjson.loads(encode(prompts, "a-model", sampling, **options))


def event(*choices: dict[str, Any], **body: Any) -> bytes:
    return b"data: " + orjson.dumps({"object": "text_completion", "choices": choices, **body}) + b"\n\n"


def said(index: int, text: str, finish: str | None = None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}


def counted(read: int, written: int) -> dict[str, int]:
    return {"prompt_tokens": read, "total_tokens": read + written, "completion_tokens": written}


def streamed(count: int, *data: bytes) -> list[PromptEvent]:
    decoder = BatchStreamDecoder(count)
    events = [found for chunk in data for found in decoder.feed(chunk)]
    assert decoder.ended
    return events


def whole(count: int, *choices: Any, **body: Any) -> BatchReply:
    return decode_batch_reply(orjson.dumps({"choices": choices, **body}), count)


def test_templated_prompts_are_sent_without_adding_special_tokens() -> None:
    assert sent("<s>one", "<s>two") == {
        "model": "a-model",
        "max_tokens": 12,
        "add_special_tokens": False,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "prompt": ["<s>one", "<s>two"],
    }


def test_raw_prompts_are_sent_with_special_tokens_added_by_the_server() -> None:
    assert sent("one", is_raw=True)["add_special_tokens"] is True


def test_a_standard_server_gets_only_standard_fields() -> None:
    assert sent("a", only_standard=True) == {
        "model": "a-model",
        "max_tokens": 12,
        "stream": True,
        "stream_options": {"include_usage": True},
        "prompt": ["a"],
    }


def test_sampling_is_for_all_prompts() -> None:
    sampling = Sampling(0.5, 0.9, 7, 12, ("END",), {"top_k": 5, "stream_interval": 100})
    body = sent("a", sampling=sampling)
    assert (body["temperature"], body["top_p"], body["seed"], body["stop"]) == (0.5, 0.9, 7, ["END"])
    assert (body["top_k"], body["stream_interval"]) == (5, 100)


def test_extra_fields_cannot_override_the_prompts() -> None:
    sampling = Sampling(max_tokens=12, extra={"prompt": ["other"], "stream": False, "model": "other", "n": 1})
    body = sent("a", sampling=sampling)
    assert (body["prompt"], body["model"], body["stream"]) == (["a"], "a-model", True)
    assert "stream" not in orjson.loads(encode_chats(["a"], "m", sampling))


def test_a_lone_surrogate_in_one_prompt_does_not_stop_other_prompts() -> None:
    assert sent("\ud800a", "b")["prompt"] == ["?a", "b"]


def test_without_a_limit_completions_would_be_cut_off_after_16_tokens() -> None:
    with pytest.raises(SpecError, match="max_tokens"):
        encode(["a"], "m", Sampling())


def test_an_empty_prompt_is_rejected() -> None:
    with pytest.raises(SpecError, match="Prompt 1 is empty"):
        encode(["a", ""], "m", SHORT)


def test_more_than_one_choice_per_prompt_is_rejected() -> None:
    with pytest.raises(SpecError, match="n=2"):
        encode(["a"], "m", Sampling(max_tokens=1, extra={"n": 2}))
    with pytest.raises(SpecError, match="n=2"):
        encode_chats(["a"], "m", Sampling(extra={"n": 2}))


def test_conversations_are_encoded_in_one_request() -> None:
    assert orjson.loads(encode_chats(["one", "two"], "a-model", SHORT)) == {
        "model": "a-model",
        "max_tokens": 12,
        "messages": [[{"role": "user", "content": "one"}], [{"role": "user", "content": "two"}]],
    }


def test_conversations_need_no_limit() -> None:
    body = orjson.loads(encode_chats(["one"], "m", Sampling()))
    assert body == {"model": "m", "messages": [[{"role": "user", "content": "one"}]]}


def test_interleaved_answers_are_decoded_with_the_usage_of_each() -> None:
    events = streamed(
        2,
        event(said(0, "The"), usage=counted(16, 1)),
        event(said(1, "Hel"), usage=counted(12, 1)),
        event(said(1, "lo", "length"), usage=counted(12, 2)),
        event(said(0, " end"), usage=counted(16, 2)),
        event(said(0, "", "stop"), usage=counted(16, 3)),
        event(usage=counted(28, 5)),
        DONE,
    )
    assert events == [
        PromptDelta(0, "The"),
        PromptDelta(1, "Hel"),
        PromptDelta(1, "lo"),
        PromptFinished(1, "length", Usage(12, 0, 2)),
        PromptDelta(0, " end"),
        PromptFinished(0, "stop", Usage(16, 0, 3)),
    ]


def test_an_event_may_have_choices_of_several_prompts() -> None:
    events = streamed(2, event(said(1, "b"), said(0, "a")), event(said(0, "", "stop"), said(1, "", "stop")), DONE)
    assert events == [PromptDelta(1, "b"), PromptDelta(0, "a"), PromptFinished(0, "stop"), PromptFinished(1, "stop")]


def test_usage_of_the_whole_request_is_not_assigned_to_a_prompt() -> None:
    ends = (event(said(0, "a", "stop"), usage=None), event(said(1, "b", "stop")))
    events = streamed(2, *ends, event(usage=counted(28, 5)), DONE)
    assert [found.usage for found in events if isinstance(found, PromptFinished)] == [None, None]


def test_usage_of_an_event_with_several_prompts_is_not_assigned() -> None:
    events = streamed(2, event(said(0, "a", "stop"), said(1, "b", "stop"), usage=counted(28, 5)), DONE)
    assert [found.usage for found in events if isinstance(found, PromptFinished)] == [None, None]


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("content_filter", "refusal"),
        ("repetition", "stop"),
        ("max_tokens", "length"),
    ],
)
def test_a_finish_reason_is_decoded(reason: str, finish: Any) -> None:
    assert streamed(1, event(said(0, "a", reason)), DONE)[-1] == PromptFinished(0, finish)
    assert whole(1, said(0, "a", reason)).answers == (PromptAnswer(0, "a", finish),)


def test_a_stream_that_ends_early_reports_unanswered_prompts() -> None:
    decoder = BatchStreamDecoder(4)
    list(decoder.feed(event(said(2, "a", "stop")) + event(said(0, "half"))))
    with pytest.raises(BackendError, match="prompt 0, 1, 3") as raised:
        decoder.close()
    assert raised.value.kind is ErrorKind.CONNECTION


def test_a_prompt_that_the_server_leaves_out_is_reported_as_missing() -> None:
    decoder = BatchStreamDecoder(2)
    with pytest.raises(BackendError, match="prompt 0"):
        list(decoder.feed(event(said(1, "a", "stop")) + DONE))
    assert decoder.ended


def test_of_many_missing_prompts_some_are_named() -> None:
    with pytest.raises(BackendError, match="prompt 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 90 more"):
        BatchStreamDecoder(100).close()


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_aborted_prompt_does_not_fail_the_other_prompts(reason: str) -> None:
    decoder = BatchStreamDecoder(2)
    events = list(decoder.feed(event(said(0, "half", reason)) + event(said(1, "whole", "stop"))))
    assert events == [PromptDelta(0, "half"), PromptDelta(1, "whole"), PromptFinished(1, "stop")]
    with pytest.raises(BackendError, match="aborted prompt 0") as raised:
        list(decoder.feed(DONE))
    assert raised.value.retryable
    assert whole(2, said(0, "half", reason), said(1, "whole", "stop")).missing == (0,)


def test_an_error_event_has_the_servers_message_and_finished_prompts_are_kept() -> None:
    error = {"error": {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}}
    decoder = BatchStreamDecoder(2)
    events = decoder.feed(event(said(1, "a", "stop")) + b"data: " + orjson.dumps(error) + b"\n\n" + DONE)
    assert [next(events), next(events)] == [PromptDelta(1, "a"), PromptFinished(1, "stop")]
    with pytest.raises(BackendError, match="Internal server error") as raised:
        next(events)
    assert raised.value.kind is ErrorKind.SERVER
    assert decoder.ended


def test_events_after_the_end_of_a_stream_are_ignored() -> None:
    decoder = BatchStreamDecoder(1)
    list(decoder.feed(event(said(0, "a", "stop")) + DONE + event(said(0, "b"))))
    assert list(decoder.feed(event(said(0, "c")))) == []


@pytest.mark.parametrize("index", [2, -1, None, "0", 0.0, True])
def test_text_for_an_unknown_prompt_is_an_error(index: Any) -> None:
    odd = said(0, "whose?") | {"index": index}
    with pytest.raises(BackendError, match="prompt"):
        list(BatchStreamDecoder(2).feed(event(odd)))
    with pytest.raises(BackendError, match="prompt"):
        whole(2, odd)


def test_a_single_prompt_needs_no_index() -> None:
    choice = {"text": "a", "finish_reason": "stop"}
    assert streamed(1, event(choice), DONE) == [PromptDelta(0, "a"), PromptFinished(0, "stop")]
    assert whole(1, choice).answers == (PromptAnswer(0, "a", "stop"),)
    with pytest.raises(BackendError):
        whole(2, choice)


def test_text_after_the_end_of_its_answer_is_a_protocol_violation() -> None:
    decoder = BatchStreamDecoder(2)
    with pytest.raises(BackendError, match="prompt 0"):
        list(decoder.feed(event(said(0, "a", "stop")) + event(said(0, "b"))))


def test_a_repeated_end_of_an_answer_is_ignored() -> None:
    events = streamed(1, event(said(0, "a", "stop")), event(said(0, "")), event(said(0, "", "length")), DONE)
    assert events == [PromptDelta(0, "a"), PromptFinished(0, "stop")]


def test_comments_and_blank_data_are_ignored() -> None:
    events = streamed(1, b": keep-alive\n\n", b"data: \n\n", event(said(0, "a", "stop")), b": keep-alive\n\n", DONE)
    assert events == [PromptDelta(0, "a"), PromptFinished(0, "stop")]


@pytest.mark.parametrize("data", [b"{", b"[]", b"1"])
def test_a_response_of_another_format_is_a_server_error(data: bytes) -> None:
    with pytest.raises(BackendError) as raised:
        list(BatchStreamDecoder(1).feed(b"data: " + data + b"\n\n"))
    assert raised.value.kind is ErrorKind.SERVER
    with pytest.raises(BackendError):
        decode_batch_reply(data, 1)


def test_choices_of_a_plain_answer_are_sorted_into_the_order_of_the_prompts() -> None:
    answer = whole(3, said(2, "c", "length"), said(0, "a", "stop"), usage=counted(28, 5))
    assert answer == BatchReply((PromptAnswer(0, "a", "stop"), PromptAnswer(2, "c", "length")), (1,), Usage(28, 0, 5))


def test_a_response_without_choices_is_an_error() -> None:
    with pytest.raises(BackendError, match="no choices"):
        decode_batch_reply(b'{"id": "x"}', 1)
    assert whole(2) == BatchReply((), (0, 1), Usage())


def test_a_plain_answer_that_is_an_error_has_the_servers_message() -> None:
    with pytest.raises(BackendError, match="boom"):
        decode_batch_reply(b'{"error": {"message": "boom", "code": 500}}', 1)


def test_two_answers_for_one_prompt_cannot_be_attributed() -> None:
    with pytest.raises(BackendError, match="twice"):
        whole(2, said(0, "a", "stop"), said(0, "b", "stop"))


def test_choices_of_conversations_are_messages() -> None:
    choices = [
        {"index": 1, "message": {"role": "assistant", "content": None, "reasoning": "Hm."}, "finish_reason": "length"},
        {"index": 0, "message": {"role": "assistant", "content": "Paris", "reasoning": None}, "finish_reason": "stop"},
    ]
    assert whole(2, *choices).answers == (PromptAnswer(0, "Paris", "stop"), PromptAnswer(1, "", "length"))
