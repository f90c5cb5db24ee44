"""Answers in OpenAI's words (chat completions)."""

from collections.abc import Iterator, Mapping
from typing import Any

from ..core.json import dumps
from ..core.messages import ToolCall
from ..core.requests import FinishReason, Reply, Usage
from .openai_requests import read
from .refusal import Refused
from .words import Envelope, Wanted

_FINISH: Mapping[FinishReason, str] = {
    "stop": "stop",
    "calls": "tool_calls",
    "length": "length",
    "refusal": "content_filter",
}


class OpenAIWords:
    """Chat completions."""

    waiting = b": waiting\n\n"

    def read(self, body: Mapping[str, Any]) -> Wanted:
        return read(body)

    def reply(self, reply: Reply, envelope: Envelope) -> bytes:
        message: dict[str, Any] = {"role": "assistant", "content": reply.text or (None if reply.calls else "")}
        if thinking := _thinking(reply):
            message["reasoning_content"] = thinking
        if reply.calls:
            message["tool_calls"] = [_call(call) for call in reply.calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(reply)}
        return dumps(_head(envelope, "chat.completion") | {"choices": [choice], "usage": _usage(reply.usage)})

    def events(self, reply: Reply, envelope: Envelope) -> bytes:
        head = _head(envelope, "chat.completion.chunk")
        chunks = [
            head | {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]}
            for delta, finish in _deltas(reply)
        ]
        if envelope.counts:
            chunks.append(head | {"choices": [], "usage": _usage(reply.usage)})
        return b"".join(map(_event, chunks)) + b"data: [DONE]\n\n"

    def refusal(self, refused: Refused) -> bytes:
        return dumps({"error": _error(refused)})

    def refusal_event(self, refused: Refused) -> bytes:
        error = _error(refused)
        if refused.code:  # OpenCode sees that a stream ended for want of room only by a message of this shape
            error["message"] = dumps({"type": "error", "error": error}).decode()
        return _event({"error": error}) + b"data: [DONE]\n\n"


def _head(envelope: Envelope, shape: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{envelope.id}",
        "object": shape,
        "created": envelope.created,
        "model": envelope.model,
    }


def _deltas(reply: Reply) -> Iterator[tuple[dict[str, Any], str | None]]:
    yield {"role": "assistant", "content": ""}, None
    if thinking := _thinking(reply):
        yield {"reasoning_content": thinking}, None
    if reply.text:
        yield {"content": reply.text}, None
    for index, call in enumerate(reply.calls):
        yield {"tool_calls": [{"index": index, **_call(call)}]}, None
    yield {}, _finish(reply)


def _thinking(reply: Reply) -> str:
    return "".join(thought.text for thought in reply.thoughts)


def _call(call: ToolCall) -> dict[str, Any]:
    """Programs read the arguments as JSON, so a call without any has an empty object."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments or "{}"}}


def _finish(reply: Reply) -> str:
    return "tool_calls" if reply.calls and reply.finish == "stop" else _FINISH[reply.finish]


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


def _error(refused: Refused) -> dict[str, Any]:
    return {"message": str(refused), "type": _kind(refused.status), "param": None, "code": refused.code}


def _kind(status: int) -> str:
    if status >= 500:
        return "server_error"
    return "rate_limit_error" if status == 429 else "invalid_request_error"


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + dumps(data) + b"\n\n"
