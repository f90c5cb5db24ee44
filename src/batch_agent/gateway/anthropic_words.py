"""Answers in Anthropic's words (messages)."""

from collections.abc import Iterator, Mapping
from typing import Any

from ..core.json import dumps, loads
from ..core.messages import Thought, ToolCall
from ..core.requests import FinishReason, Reply, Usage
from .anthropic_requests import read
from .json_text import as_object
from .refusal import Refused
from .words import Envelope, Wanted

_FINISH: Mapping[FinishReason, str] = {
    "stop": "end_turn",
    "calls": "tool_use",
    "length": "max_tokens",
    "refusal": "refusal",
}
_NAMES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
Data = dict[str, Any]


class AnthropicWords:
    """Messages."""

    waiting = b'event: ping\ndata: {"type":"ping"}\n\n'

    def read(self, body: Mapping[str, Any]) -> Wanted:
        return read(body)

    def reply(self, reply: Reply, envelope: Envelope) -> bytes:
        content: list[Data] = [_thought(thought) for thought in reply.thoughts]
        if reply.text:
            content.append({"type": "text", "text": reply.text})
        content += [_call(call) | {"input": as_object(call.arguments)} for call in reply.calls]
        return dumps(_message(envelope, content, _finish(reply), _usage(reply.usage)))

    def events(self, reply: Reply, envelope: Envelope) -> bytes:
        started = _message(envelope, [], None, _usage(reply.usage) | {"output_tokens": 0})
        ended = {"stop_reason": _finish(reply), "stop_sequence": None}
        blocks = [
            event
            for index, (start, deltas) in enumerate(_blocks(reply))
            for event in _block_events(index, start, deltas)
        ]
        return b"".join(
            [
                _event("message_start", message=started),
                *blocks,
                _event("message_delta", delta=ended, usage=_usage(reply.usage)),
                _event("message_stop"),
            ]
        )

    def refusal(self, refused: Refused) -> bytes:
        return dumps({"type": "error", "error": _error(refused)})

    def refusal_event(self, refused: Refused) -> bytes:
        return _event("error", error=_error(refused))


def _message(envelope: Envelope, content: list[Data], finish: str | None, usage: Data) -> Data:
    return {
        "id": f"msg_{envelope.id}",
        "type": "message",
        "role": "assistant",
        "model": envelope.model,
        "content": content,
        "stop_reason": finish,
        "stop_sequence": None,
        "usage": usage,
    }


def _blocks(reply: Reply) -> Iterator[tuple[Data, list[Data]]]:
    """What each block begins with, and what is added to it."""
    for thought in reply.thoughts:
        if thought.redacted:
            yield _thought(thought), []
            continue
        signed = [{"type": "signature_delta", "signature": thought.signature}] if thought.signature else []
        yield _thought(Thought()), [{"type": "thinking_delta", "thinking": thought.text}, *signed]
    if reply.text:
        yield {"type": "text", "text": ""}, [{"type": "text_delta", "text": reply.text}]
    for call in reply.calls:
        yield _call(call), [{"type": "input_json_delta", "partial_json": _object_text(call.arguments)}]


def _block_events(index: int, start: Data, deltas: list[Data]) -> Iterator[bytes]:
    yield _event("content_block_start", index=index, content_block=start)
    for delta in deltas:
        yield _event("content_block_delta", index=index, delta=delta)
    yield _event("content_block_stop", index=index)


def _thought(thought: Thought) -> Data:
    if thought.redacted:
        return {"type": "redacted_thinking", "data": thought.redacted}
    return {"type": "thinking", "thinking": thought.text, "signature": thought.signature}


def _call(call: ToolCall) -> Data:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}


def _object_text(arguments: str) -> str:
    """The model's own text, where it is the object that programs expect."""
    try:
        if isinstance(loads(arguments), dict):
            return arguments
    except (ValueError, RecursionError):
        pass
    return dumps(as_object(arguments)).decode()


def _finish(reply: Reply) -> str:
    return "tool_use" if reply.calls and reply.finish == "stop" else _FINISH[reply.finish]


def _usage(usage: Usage) -> Data:
    return {
        "input_tokens": max(0, usage.input - usage.cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
    }


def _error(refused: Refused) -> Data:
    others = "api_error" if refused.status >= 500 else "invalid_request_error"
    return {"type": _NAMES.get(refused.status, others), "message": str(refused)}


def _event(kind: str, **data: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), dumps({"type": kind, **data}))
