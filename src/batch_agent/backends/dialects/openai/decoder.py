"""Decoder of responses in the OpenAI chat completions format, including deviations of compatible servers."""

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, NamedTuple

from ....core.errors import BackendError, ErrorKind
from ....core.fast_dataclass import dataclass
from ....core.json import dumps
from ....core.messages import ToolCall
from ....core.requests import CallDelta, Delta, Finished, FinishReason, Lane, ReasoningDelta, TextDelta, Usage
from ...http.sse import SseParser
from ..response_body import billed_usage, openai_usage, read_object
from .chunk_fast_path import ChunkFastPath, ChunkText
from .token_ids import PROMPT_IDS, read_tokens

_FINISH: Mapping[str, FinishReason] = {
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "calls",
    "function_call": "calls",
    "content_filter": "refusal",
}
_DISPATCH = b"tool_call_dispatch"
"""Dynamo's event for a complete call, ahead of its chunk."""
_ABORTED_REASONS = ("abort", "error")
"""Finish reasons of a reply that the server could not complete."""


def decode_reply(body: bytes, lane: Lane = "standard") -> list[Delta]:
    """Decodes a response that is not streamed. Raises BackendError if it does not have the format."""
    reply = read_object(body)
    choice = _first_choice(reply)
    if choice is None:
        raise BackendError(ErrorKind.SERVER, f"The response has no choices: {body[:200]!r}")
    message = choice.get("message")
    if type(message) is not dict:  # as a parser makes them; isinstance() would cost a call for each field
        message = {"content": choice.get("text")}
    reasoning, text = _content_of(message)
    deltas: list[Delta] = []
    if reasoning:
        deltas.append(ReasoningDelta(reasoning))
    if text:
        deltas.append(TextDelta(text))
    made_calls = False
    if message.get("tool_calls"):
        for part in _parts(message):
            if part.signature:
                deltas.append(ReasoningDelta(signature=part.signature))
            deltas.append(CallDelta(ToolCall(part.id, part.name, part.arguments)))
            made_calls = True
    finish = _finish(choice.get("finish_reason"), made_calls, bool(message.get("refusal")))
    usage = openai_usage(reply.get("usage")) or Usage()
    tokens = None
    if (PROMPT_IDS in reply and reply[PROMPT_IDS]) or (PROMPT_IDS in choice and choice[PROMPT_IDS]):  # noqa: RUF019
        tokens = read_tokens(reply, choice)
    deltas.append(Finished(finish, billed_usage(usage, lane, reply.get("service_tier")), tokens))
    return deltas


@dataclass(slots=True)
class _OpenCall:
    """A tool call that may be incomplete."""

    index: Any
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)

    def is_another(self, part: "_CallPart") -> bool:
        """Whether `part` begins another call. Some servers use one index for all calls, and distinguish them by id."""
        return part.index != self.index or bool(part.name and part.id and self.id and part.id != self.id)

    def add(self, part: "_CallPart") -> None:
        self.id = self.id or part.id
        self.name = self.name or part.name
        self.arguments.append(part.arguments)

    def complete(self) -> CallDelta:
        if not self.name:
            raise BackendError(ErrorKind.SERVER, "The response has a tool call without a name.")
        return CallDelta(ToolCall(self.id, self.name, "".join(self.arguments)))


class OpenAIStreamDecoder:
    """Incremental decoder of a streamed response. A tool call is emitted as soon as it is complete. Tokens that arrive
    in one chunk are joined into one delta."""

    def __init__(self, lane: Lane = "standard") -> None:
        self._lane = lane
        self._tier: Any = None
        self._events = SseParser()
        self._fast_path = ChunkFastPath(_text_only_chunk)
        self._kind: type[TextDelta | ReasoningDelta] = TextDelta
        self._parts: list[str] = []
        self._call: _OpenCall | None = None
        self._dispatched: list[tuple[Any, str]] = []
        self._made_calls = False
        self._refused = False
        self._finish: Any = None
        self._usage = Usage()
        self._ended = False

    def feed(self, chunk: bytes) -> Iterator[Delta]:
        deltas: list[Delta] = []
        try:
            self._read(chunk, deltas)
        finally:  # deltas before an error are delivered
            self._join(deltas)
            yield from deltas

    def close(self) -> Iterator[Delta]:
        """The last deltas, after the end of the body. Raises BackendError for a truncated reply."""
        deltas: list[Delta] = []
        self._close(deltas)
        yield from deltas

    @property
    def ended(self) -> bool:
        return self._ended

    def _read(self, chunk: bytes, deltas: list[Delta]) -> None:
        for data, name in self._events.feed(chunk):
            if self._ended:
                return
            text = "" if name else self._fast_path.text(data)
            if text:
                self._append(self._fast_path.kind, text, deltas)
            else:
                self._event(data.strip(), name, deltas)

    def _event(self, data: bytes, name: bytes, deltas: list[Delta]) -> None:
        if data == b"[DONE]":
            self._close(deltas)
        elif data and name == _DISPATCH:
            self._dispatch(read_object(data), deltas)
        elif data:
            self._chunk(read_object(data), deltas)
            self._fast_path.learn(data)

    def _close(self, deltas: list[Delta]) -> None:
        self._ended = True
        if self._finish is None:
            raise BackendError(
                ErrorKind.CONNECTION, "The response was truncated: the stream ended before the reply was complete."
            )
        self._close_call(deltas)
        self._join(deltas)
        usage = billed_usage(self._usage, self._lane, self._tier)
        deltas.append(Finished(_finish(self._finish, self._made_calls, self._refused), usage))

    def _chunk(self, chunk: dict[str, Any], deltas: list[Delta]) -> None:
        if chunk.get("usage"):
            self._usage = openai_usage(chunk["usage"]) or Usage()
        if chunk.get("service_tier"):
            self._tier = chunk["service_tier"]
        choice = _first_choice(chunk)
        if choice is None:
            return
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = {"content": choice.get("text")}
        reasoning, text = _content_of(delta)
        if reasoning:
            self._append(ReasoningDelta, reasoning, deltas)
        if text:
            self._append(TextDelta, text, deltas)
        if delta.get("refusal"):
            self._refused = True
        if delta.get("tool_calls"):
            for part in _parts(delta):
                self._add(part, deltas)
        if choice.get("finish_reason"):
            self._finish = choice["finish_reason"]
            self._close_call(deltas)

    def _append(self, kind: type[TextDelta | ReasoningDelta], part: str, deltas: list[Delta]) -> None:
        if kind is not self._kind:
            self._join(deltas)
            self._kind = kind
        self._parts.append(part)

    def _join(self, deltas: list[Delta]) -> None:
        if self._parts:
            deltas.append(self._kind("".join(self._parts)))
            self._parts.clear()

    def _dispatch(self, event: dict[str, Any], deltas: list[Delta]) -> None:
        """A complete call that the server has parsed already; the chunks that repeat it are ignored."""
        self._close_call(deltas)
        for part in _parts({"tool_calls": [event.get("tool_call")]}):
            self._dispatched.append((part.index, part.id))
            self._emit(CallDelta(ToolCall(part.id, part.name, part.arguments)), deltas)

    def _add(self, part: "_CallPart", deltas: list[Delta]) -> None:
        if (part.index, part.id) in self._dispatched:
            return
        if self._call is not None and self._call.is_another(part):
            self._close_call(deltas)
        if self._call is None:
            self._call = _OpenCall(part.index)
        if part.signature:
            self._join(deltas)
            deltas.append(ReasoningDelta(signature=part.signature))
        self._call.add(part)

    def _close_call(self, deltas: list[Delta]) -> None:
        call, self._call = self._call, None
        if call is not None:
            self._emit(call.complete(), deltas)

    def _emit(self, call: CallDelta, deltas: list[Delta]) -> None:
        self._made_calls = True
        self._join(deltas)
        deltas.append(call)


class _CallPart(NamedTuple):
    """A tool call, or the part of a tool call in one chunk."""

    index: Any
    id: str
    name: str
    arguments: str
    signature: str = ""
    """Gemini's signature of the reasoning before the call."""


def _parts(message: Mapping[str, Any]) -> Iterator[_CallPart]:
    entries = message.get("tool_calls")
    for call in entries if type(entries) is list else ():
        if type(call) is not dict:
            continue
        function = call.get("function")
        if type(function) is not dict:
            function = {}
        arguments = function.get("arguments")
        if type(arguments) is not str:
            arguments = "" if arguments is None else dumps(arguments).decode()
        name, signature = str(function.get("name") or ""), _signature(call) if "extra_content" in call else ""
        yield _CallPart(call.get("index") or 0, str(call.get("id") or ""), name, arguments, signature)


def _signature(call: Mapping[str, Any]) -> str:
    match call["extra_content"]:
        case {"google": {"thought_signature": str(signature)}}:
            return signature
        case _:
            return ""


def _first_choice(reply: dict[str, Any]) -> dict[str, Any] | None:
    choices = reply.get("choices")
    first = choices[0] if type(choices) is list and choices else None
    return first if type(first) is dict else None


def _text_only_chunk(data: bytes) -> ChunkText | None:
    """The text of a chunk that contains nothing else."""
    try:
        chunk = read_object(data)
    except BackendError:
        return None
    choice = _first_choice(chunk) or {}
    delta = choice.get("delta")
    if not isinstance(delta, dict) or delta.get("refusal") or delta.get("tool_calls"):
        return None
    reasoning, text = _content_of(delta)
    if chunk.get("usage") or choice.get("finish_reason") or bool(reasoning) is bool(text):
        return None
    return (ReasoningDelta, reasoning) if reasoning else (TextDelta, text)


def _content_of(message: Mapping[str, Any]) -> tuple[str, str]:
    """Reasoning and text of a message; either may be empty."""
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    text = message.get("content")
    if type(text) is not str or not text:
        text = (_text(text) if text else "") or _text(message.get("refusal"))
    return reasoning if type(reasoning) is str else "", text


def _text(content: Any) -> str:
    match content:
        case str():
            return content
        case list():
            return "".join(_text(part.get("text")) if isinstance(part, dict) else _text(part) for part in content)
        case _:
            return ""


def _finish(reason: Any, made_calls: bool, refused: bool) -> FinishReason:
    if reason in _ABORTED_REASONS:
        raise BackendError(ErrorKind.SERVER, f"The server aborted the reply (finish_reason {reason!r}).")
    if refused:
        return "refusal"
    if made_calls and reason != "length":
        return "calls"
    return _FINISH.get(reason, "stop") if type(reason) is str else "stop"
