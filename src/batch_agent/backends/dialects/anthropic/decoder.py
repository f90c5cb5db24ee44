"""Decoder of responses in the Anthropic Messages format, from Anthropic and compatible servers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ....core.errors import BackendError, ErrorKind
from ....core.json import dumps
from ....core.messages import ToolCall
from ....core.requests import CallDelta, Delta, Finished, FinishReason, Lane, ReasoningDelta, TextDelta, Usage
from ...http.sse import SseParser
from ...http_errors import reported_error
from ..response_body import billed_usage, object_or_empty, parse_object, text_or_empty, token_count

_FINISH: Mapping[str, FinishReason] = {
    "tool_use": "calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}


def decode_reply(body: bytes, lane: Lane = "standard") -> list[Delta]:
    """Decodes a response that is not streamed. Raises BackendError if it does not have the format."""
    reply = _object(body)
    content, reason = reply.get("content"), reply.get("stop_reason")
    if not isinstance(content, list):
        raise BackendError(ErrorKind.SERVER, f"The response has no content: {body[:200]!r}")
    if reason is None:
        raise BackendError(ErrorKind.SERVER, "The server aborted the reply: it has no stop_reason.")
    blocks = [block for block in content if isinstance(block, dict)]
    deltas: list[Delta] = []
    for block in blocks:
        if block.get("type") == "tool_use":
            is_truncated = block is blocks[-1] and _FINISH.get(str(reason)) == "length"
            deltas.append(_OpenCall(block).complete(is_truncated=is_truncated))
        else:
            deltas += _block_deltas(block)
    made_calls = any(isinstance(delta, CallDelta) for delta in deltas)
    counts: dict[str, int] = {}
    _count(reply.get("usage"), counts)
    return [*deltas, Finished(_finish(reason, made_calls), billed_usage(_usage(counts), lane))]


@dataclass(slots=True)
class _OpenCall:
    """A tool call that may be incomplete."""

    block: dict[str, Any]
    index: Any = None
    pieces: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        return "".join(self.pieces) or _json_text(self.block.get("input"))

    def complete(self, *, is_truncated: bool) -> CallDelta:
        """The complete call. The arguments of a call that was truncated before the first one are unknown, not empty."""
        name = text_or_empty(self.block.get("name"))
        if not name:
            raise BackendError(ErrorKind.SERVER, "The response has a tool call without a name.")
        arguments = self.arguments or ("" if is_truncated else "{}")
        return CallDelta(ToolCall(text_or_empty(self.block.get("id")), name, arguments))


class AnthropicStreamDecoder:
    """Incremental decoder of a streamed response. A tool call is emitted as soon as it is known to be complete."""

    def __init__(self, lane: Lane = "standard") -> None:
        self._lane = lane
        self._events = SseParser()
        self._call: _OpenCall | None = None
        self._made_calls = False
        self._reason: Any = None
        self._counts: dict[str, int] = {}
        self._ended = False

    def feed(self, chunk: bytes) -> Iterator[Delta]:
        for data, name in self._events.feed(chunk):
            if self._ended:
                return
            if data.strip():
                yield from self._event(_object(data, is_error=name == b"error"))

    def close(self) -> Iterator[Delta]:
        """The last deltas, after the end of the body. Raises BackendError for a truncated reply."""
        self._ended = True
        if self._reason is None:
            raise BackendError(
                ErrorKind.CONNECTION, "The response was truncated: the stream ended before the reply was complete."
            )
        yield from self._close_call(is_truncated=_FINISH.get(str(self._reason)) == "length")
        yield Finished(_finish(self._reason, self._made_calls), billed_usage(_usage(self._counts), self._lane))

    @property
    def ended(self) -> bool:
        return self._ended

    def _event(self, event: dict[str, Any]) -> Iterator[Delta]:
        match event.get("type"):
            case "message_start":
                _count(object_or_empty(event.get("message")).get("usage"), self._counts)
                self._counts.pop("output_tokens", None)  # preliminary; the final count comes at the end
            case "content_block_start":
                yield from self._close_call()
                yield from self._start(event.get("index"), object_or_empty(event.get("content_block")))
            case "content_block_delta":
                yield from self._add(event.get("index"), object_or_empty(event.get("delta")))
            case "content_block_stop":
                # A call without arguments may have none, or be truncated: the next event shows which.
                if self._call is not None and self._call.arguments:
                    yield from self._close_call()
            case "message_delta":
                self._reason = object_or_empty(event.get("delta")).get("stop_reason") or self._reason
                _count(event.get("usage"), self._counts)
            case "message_stop":
                yield from self.close()

    def _start(self, index: Any, block: dict[str, Any]) -> Iterator[Delta]:
        if block.get("type") == "tool_use":
            self._call = _OpenCall(block, index)
        else:
            yield from _block_deltas(block)

    def _add(self, index: Any, delta: dict[str, Any]) -> Iterator[Delta]:
        match delta:
            case {"type": "text_delta", "text": str(text)} if text:
                yield TextDelta(text)
            case {"type": "thinking_delta", "thinking": str(thought)} if thought:
                yield ReasoningDelta(thought)
            case {"type": "signature_delta", "signature": str(signature)} if signature:
                yield ReasoningDelta(signature=signature)
            case {"type": "input_json_delta", "partial_json": str(piece)}:
                if self._call is not None and self._call.index == index:  # not a call of a server-side tool
                    self._call.pieces.append(piece)

    def _close_call(self, *, is_truncated: bool = False) -> Iterator[Delta]:
        call, self._call = self._call, None
        if call is not None:
            self._made_calls = True
            yield call.complete(is_truncated=is_truncated)


def _object(data: bytes, *, is_error: bool = False) -> dict[str, Any]:
    value = parse_object(data)
    if is_error or value.get("type") == "error" or value.get("error"):
        raise reported_error(value)
    return value


def _block_deltas(block: dict[str, Any]) -> list[Delta]:
    """Deltas of a block that is not a tool call. Unknown types are ignored."""
    match block:
        case {"type": "text", "text": str(text)} if text:
            return [TextDelta(text)]
        case {"type": "thinking"}:
            thought = ReasoningDelta(text_or_empty(block.get("thinking")), text_or_empty(block.get("signature")))
            return [thought] if thought.text or thought.signature else []
        case {"type": "redacted_thinking", "data": str(data)} if data:
            return [ReasoningDelta(redacted=data)]
    return []


def _finish(reason: Any, made_calls: bool) -> FinishReason:
    finish = _FINISH.get(str(reason), "stop")
    return "calls" if finish == "stop" and made_calls else finish


def _count(usage: Any, counts: dict[str, int]) -> None:
    """Later counts replace earlier ones; omitted counts keep their value."""
    if isinstance(usage, dict):
        for part in (usage, object_or_empty(usage.get("cache_creation"))):
            counts |= {name: tokens for name, value in part.items() if (tokens := token_count(value)) or value == 0}


def _usage(counts: Mapping[str, int]) -> Usage:
    cached = counts.get("cache_read_input_tokens", 0)
    hour, minutes = counts.get("ephemeral_1h_input_tokens", 0), counts.get("ephemeral_5m_input_tokens", 0)
    written = counts.get("cache_creation_input_tokens", hour + minutes)
    hour = min(hour, written)
    return Usage(
        input=counts.get("input_tokens", 0) + written + cached,
        cached=cached,
        output=counts.get("output_tokens", 0),
        written=written - hour,
        written_hour=hour,
    )


def _json_text(value: Any) -> str:
    """Arguments that were sent as JSON values, as text; empty if there are none."""
    if not value or isinstance(value, str):
        return value or ""
    return dumps(value).decode()
