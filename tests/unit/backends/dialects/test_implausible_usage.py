"""What a server tells of the tokens it took is believed only where it can be true, in every dialect."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from batch_agent.backends.dialects.anthropic import decoder as anthropic_answers
from batch_agent.backends.dialects.bedrock import decoder as bedrock_answers
from batch_agent.backends.dialects.completions import decoder as completions_answers
from batch_agent.backends.dialects.openai import decoder as openai_answers
from batch_agent.core.requests import Finished, Usage

Told = Callable[[Any, Any, Any], Usage]
"""The usage that is read where a server tells these for input, cached input and output."""


def _sse(*events: Any) -> bytes:
    return b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events)


def _last(deltas: Any) -> Usage:
    last = list(deltas)[-1]
    assert isinstance(last, Finished)
    return last.usage


def _openai_usage(new: Any, cached: Any, output: Any) -> dict[str, Any]:
    return {
        "prompt_tokens": new,
        "completion_tokens": output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def openai_whole(*told: Any) -> Usage:
    choice = {"message": {"content": "Hi"}, "finish_reason": "stop"}
    body = {"choices": [choice], "usage": _openai_usage(*told)}
    return _last(openai_answers.decode_reply(orjson.dumps(body)))


def openai_streamed(*told: Any) -> Usage:
    said = {"choices": [{"delta": {"content": "Hi"}, "finish_reason": "stop"}]}
    decoder = openai_answers.OpenAIStreamDecoder()
    body = _sse(said, {"choices": [], "usage": _openai_usage(*told)}) + b"data: [DONE]\n\n"
    return _last(decoder.feed(body))


def completions_whole(*told: Any) -> Usage:
    body = {"choices": [{"index": 0, "text": "Hi", "finish_reason": "stop"}], "usage": _openai_usage(*told)}
    return completions_answers.decode_batch_reply(orjson.dumps(body), 1).usage


def completions_streamed(*told: Any) -> Usage:
    event = {"choices": [{"index": 0, "text": "Hi", "finish_reason": "stop"}], "usage": _openai_usage(*told)}
    [_, done] = completions_answers.BatchStreamDecoder(1).feed(_sse(event))
    assert isinstance(done, completions_answers.PromptFinished)
    assert done.usage is not None
    return done.usage


def _anthropic_usage(new: Any, cached: Any, output: Any) -> dict[str, Any]:
    fresh = new - cached if type(new) is int and type(cached) is int else new
    return {"input_tokens": fresh, "cache_read_input_tokens": cached, "output_tokens": output}


def anthropic_whole(*told: Any) -> Usage:
    body = {
        "content": [{"type": "text", "text": "Hi"}],
        "stop_reason": "end_turn",
        "usage": _anthropic_usage(*told),
    }
    return _last(anthropic_answers.decode_reply(orjson.dumps(body)))


def anthropic_streamed(*told: Any) -> Usage:
    usage = _anthropic_usage(*told)
    decoder = anthropic_answers.AnthropicStreamDecoder()
    started = {"type": "message_start", "message": {"usage": usage}}
    ended = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}
    return _last(decoder.feed(_sse(started, ended, {"type": "message_stop"})))


def bedrock_whole(*told: Any) -> Usage:
    usage = _anthropic_usage(*told)
    body = {
        "output": {"message": {"content": [{"text": "Hi"}]}},
        "stopReason": "end_turn",
        "usage": {
            "inputTokens": usage["input_tokens"],
            "cacheReadInputTokens": usage["cache_read_input_tokens"],
            "outputTokens": usage["output_tokens"],
        },
    }
    return _last(bedrock_answers.decode_reply(orjson.dumps(body)))


dialects = pytest.mark.parametrize(
    "told",
    [
        openai_whole,
        openai_streamed,
        completions_whole,
        completions_streamed,
        anthropic_whole,
        anthropic_streamed,
        bedrock_whole,
    ],
)
ABSURD = [10**18, -1, -(10**18), 1.5, 12.0, 1e18, True, False, "7", None, [7], {"a": 7}]


@dialects
def test_plausible_counts_are_accepted(told: Told) -> None:
    assert told(30, 10, 7) == Usage(30, 10, 7)


@dialects
def test_an_absurd_output_count_is_not_reported(told: Told) -> None:
    reported = [(value, told(30, 10, value)) for value in ABSURD]
    assert reported == [(value, Usage(30, 10, 0)) for value in ABSURD]


@dialects
def test_absurd_counts_are_never_negative_nor_large(told: Told) -> None:
    for value in ABSURD:
        for usage in (told(value, 10, 7), told(30, value, 7), told(value, value, value)):
            assert 0 <= usage.cached <= usage.input <= 10**9, value
            assert 0 <= usage.output <= 10**9, value


@dialects
def test_cached_tokens_never_exceed_input_tokens(told: Told) -> None:
    usage = told(30, 40, 7)
    assert usage.cached <= usage.input
