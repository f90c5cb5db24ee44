"""Decoder of responses of Amazon Bedrock's Converse API: JSON, and streams of binary events."""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ....core.errors import BackendError, ErrorKind
from ....core.json import dumps
from ....core.messages import ToolCall
from ....core.requests import CallDelta, Delta, Finished, FinishReason, Lane, ReasoningDelta, TextDelta, Usage
from ...http_errors import error_message, named_error
from ..response_body import billed_usage, list_or_empty, object_or_empty, parse_object, text_or_empty, token_count

if TYPE_CHECKING:
    from botocore.eventstream import EventStreamBuffer, EventStreamMessage  # type: ignore[import-untyped]

NEEDS_BOTOCORE = "bedrock:// needs botocore: pip install 'batch-agent[bedrock]'."
_FINISH: Mapping[str, FinishReason] = {
    "tool_use": "calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "guardrail_intervened": "refusal",
    "content_filtered": "refusal",
}


def decode_reply(body: bytes, lane: Lane = "standard") -> list[Delta]:
    """Decodes a response that is not streamed. Raises BackendError if it does not have the format."""
    reply = parse_object(body)
    content = object_or_empty(object_or_empty(reply.get("output")).get("message")).get("content")
    if not isinstance(content, list):
        raise BackendError(ErrorKind.SERVER, f"The response has no message: {body[:200]!r}")
    deltas = [delta for block in content for delta in _block_deltas(object_or_empty(block))]
    made_calls = any(isinstance(delta, CallDelta) for delta in deltas)
    return [*deltas, Finished(_finish(reply.get("stopReason"), made_calls), _usage(reply, lane))]


class BedrockStreamDecoder:
    """Incremental decoder of a streamed response. A tool call is emitted as soon as it is complete."""

    def __init__(self, lane: Lane = "standard") -> None:
        """Raises BackendError if botocore, which parses the frames, is missing."""
        self._frames = _new_buffer()
        self._lane = lane
        self._calls: dict[int, _OpenCall] = {}
        self._made_calls = False
        self._finish: Any = None
        self._usage: Usage | None = None
        self._ended = False

    def feed(self, chunk: bytes) -> Iterator[Delta]:
        self._frames.add_data(chunk)
        while not self._ended and (frame := _next(self._frames)) is not None:
            yield from self._event(_event_of(frame), parse_object(frame.payload or b"{}"))

    def close(self) -> Iterator[Delta]:
        """The last deltas, after the end of the body. Raises BackendError for a truncated reply."""
        self._ended = True
        if self._finish is None:
            raise BackendError(
                ErrorKind.CONNECTION, "The response was truncated: the stream ended before the reply was complete."
            )
        yield Finished(_finish(self._finish, self._made_calls), self._usage or Usage())

    @property
    def ended(self) -> bool:
        return self._ended

    def _event(self, name: str, event: dict[str, Any]) -> Iterator[Delta]:
        match name:
            case "contentBlockStart":
                self._start(_index(event), object_or_empty(event.get("start")))
            case "contentBlockDelta":
                yield from self._add(_index(event), object_or_empty(event.get("delta")))
            case "contentBlockStop":
                yield from self._close_call(_index(event))
            case "messageStop":
                for index in list(self._calls):
                    yield from self._close_call(index)
                self._finish = str(event.get("stopReason"))
            case "metadata":  # comes after the stop
                self._usage = _usage(event, self._lane)
        if self._finish is not None and self._usage is not None:
            yield from self.close()

    def _start(self, index: int, block: dict[str, Any]) -> None:
        if "toolUse" in block:
            use = object_or_empty(block["toolUse"])
            self._calls[index] = _OpenCall(text_or_empty(use.get("toolUseId")), text_or_empty(use.get("name")))

    def _add(self, index: int, content: dict[str, Any]) -> Iterator[Delta]:
        if text := text_or_empty(content.get("text")):
            yield TextDelta(text)
        if "reasoningContent" in content:
            yield from _thought(object_or_empty(content["reasoningContent"]))
        if index in self._calls:
            self._calls[index].arguments.append(text_or_empty(object_or_empty(content.get("toolUse")).get("input")))

    def _close_call(self, index: int) -> Iterator[Delta]:
        call = self._calls.pop(index, None)
        if call is not None:
            self._made_calls = True
            yield _call(call.id, call.name, "".join(call.arguments))


@dataclass(slots=True)
class _OpenCall:
    """A tool call that may be incomplete."""

    id: str
    name: str
    arguments: list[str] = field(default_factory=list)


def _new_buffer() -> "EventStreamBuffer":
    try:
        from botocore.eventstream import EventStreamBuffer
    except ImportError as error:
        raise BackendError(ErrorKind.BAD_REQUEST, f"{NEEDS_BOTOCORE} It parses the streams.") from error
    return EventStreamBuffer()


def _next(frames: "EventStreamBuffer") -> "EventStreamMessage | None":
    """The next complete frame. botocore verifies checksums, but accepts a frame with contradictory lengths."""
    from botocore.eventstream import ParserError

    try:
        frame = next(frames, None)
    except (ParserError, KeyError, UnicodeDecodeError, struct.error) as error:
        raise BackendError(ErrorKind.SERVER, "The stream is corrupt: a frame cannot be parsed.") from error
    if frame is not None and frame.prelude.payload_length < 0:
        raise BackendError(ErrorKind.SERVER, "The stream is corrupt: a frame cannot be parsed.")
    return frame


def _event_of(frame: "EventStreamMessage") -> str:
    """The name of an event. Raises BackendError for a frame that carries an error."""
    headers = frame.headers
    match headers.get(":message-type"):
        case "exception":
            name = str(headers.get(":exception-type"))
            raise named_error([name], f"{name}: {error_message(parse_object(frame.payload or b'{}'))}")
        case "error":
            name = str(headers.get(":error-code"))
            raise named_error([name], f"{name}: {headers.get(':error-message')}")
    return str(headers.get(":event-type"))


def _block_deltas(block: dict[str, Any]) -> Iterator[Delta]:
    if text := text_or_empty(block.get("text")):
        yield TextDelta(text)
    if "reasoningContent" in block:
        content = object_or_empty(block["reasoningContent"])
        yield from _thought({**content, **object_or_empty(content.get("reasoningText"))})
    if "toolUse" in block:
        use = object_or_empty(block["toolUse"])
        arguments = dumps(use["input"]).decode() if "input" in use else ""
        yield _call(text_or_empty(use.get("toolUseId")), text_or_empty(use.get("name")), arguments)


def _thought(content: dict[str, Any]) -> Iterator[Delta]:
    text, signature, redacted = (text_or_empty(content.get(name)) for name in ("text", "signature", "redactedContent"))
    if text or signature or redacted:
        yield ReasoningDelta(text, signature, redacted)


def _call(id: str, name: str, arguments: str) -> CallDelta:
    if not name:
        raise BackendError(ErrorKind.SERVER, "The response has a tool call without a name.")
    return CallDelta(ToolCall(id, name, arguments))


def _finish(reason: Any, made_calls: bool) -> FinishReason:
    return _FINISH.get(str(reason)) or ("calls" if made_calls else "stop")


def _usage(reply: dict[str, Any], lane: Lane) -> Usage:
    """The service counts cache reads and cache writes separately from the input."""
    counts = object_or_empty(reply.get("usage"))
    new, read, written, output = (
        token_count(counts.get(name))
        for name in ("inputTokens", "cacheReadInputTokens", "cacheWriteInputTokens", "outputTokens")
    )
    hour = min(written, sum(map(_hour_tokens, list_or_empty(counts.get("cacheDetails")))))
    usage = Usage(new + read + written, read, output, written - hour, hour)
    return billed_usage(usage, lane, object_or_empty(reply.get("serviceTier")).get("type"))


def _hour_tokens(detail: Any) -> int:
    """Tokens that an entry of `cacheDetails` says were written for an hour."""
    found = object_or_empty(detail)
    return token_count(found.get("inputTokens")) if found.get("ttl") == "1h" else 0


def _index(event: dict[str, Any]) -> int:
    index = event.get("contentBlockIndex")
    return index if isinstance(index, int) else 0
