"""Answers in the OpenAI chat completions format, as many servers speak it, with their liberties."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ....core.errors import BackendError, ErrorKind
from ....core.json import dumps
from ....core.messages import ToolCall
from ....core.requests import CallDelta, Delta, Finished, FinishReason, ReasoningDelta, TextDelta, Usage
from ...http.sse import SseParser
from ..response_body import openai_usage, read_object
from .chunk_fast_path import ChunkFastPath, ChunkText

_FINISH: Mapping[str, FinishReason] = {
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "calls",
    "function_call": "calls",
    "content_filter": "refusal",
}
_DISPATCH = b"tool_call_dispatch"
"""Dynamo's event for a call that is whole, ahead of its chunk."""
_GIVEN_UP = ("abort", "error")
"""How a server ends an answer that it could not finish."""


def decode_reply(body: bytes) -> list[Delta]:
    """A plain answer as deltas. Raises BackendError for what is not of the format."""
    answer = read_object(body)
    choice = _first_choice(answer)
    if choice is None:
        raise BackendError(ErrorKind.SERVER, f"The answer has no choices: {body[:200]!r}")
    message = choice.get("message")
    if not isinstance(message, dict):
        message = {"content": choice.get("text")}
    thought, text = _said(message)
    deltas: list[Delta] = []
    if thought:
        deltas.append(ReasoningDelta(thought))
    if text:
        deltas.append(TextDelta(text))
    made_calls = False
    if message.get("tool_calls"):
        calls = [CallDelta(_whole_call(piece)) for piece in _pieces(message)]
        deltas += calls
        made_calls = bool(calls)
    finish = _finish(choice.get("finish_reason"), made_calls, bool(message.get("refusal")))
    deltas.append(Finished(finish, openai_usage(answer.get("usage")) or Usage()))
    return deltas


@dataclass(slots=True)
class _OpenCall:
    """A call of which more may come."""

    index: Any
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)

    def is_another(self, piece: "_Piece") -> bool:
        """Servers number their calls, or give all of them the same number and tell them apart by their ids."""
        return piece.index != self.index or bool(piece.name and piece.id and self.id and piece.id != self.id)

    def add(self, piece: "_Piece") -> None:
        self.id = self.id or piece.id
        self.name = self.name or piece.name
        self.arguments.append(piece.arguments)

    def whole(self) -> CallDelta:
        if not self.name:
            raise BackendError(ErrorKind.SERVER, "The answer has a tool call without a name.")
        return CallDelta(ToolCall(self.id, self.name, "".join(self.arguments)))


class OpenAIStreamDecoder:
    """Deltas from the bytes of a streamed answer. A tool call is given out as soon as it is whole. Tokens that came in
    one chunk are one delta: nobody could have seen the first of them before the last."""

    def __init__(self) -> None:
        self._events = SseParser()
        self._repeats = ChunkFastPath(_only_said)
        self._kind: type[TextDelta | ReasoningDelta] = TextDelta
        self._pieces: list[str] = []
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
        finally:  # what was said before an error is said
            self._join(deltas)
            yield from deltas

    def close(self) -> Iterator[Delta]:
        """The last deltas, when the bytes are over. Raises BackendError for an answer that was cut off."""
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
            text = "" if name else self._repeats.text(data)
            if text:
                self._say(self._repeats.kind, text, deltas)
            else:
                self._event(data.strip(), name, deltas)

    def _event(self, data: bytes, name: bytes, deltas: list[Delta]) -> None:
        if data == b"[DONE]":
            self._close(deltas)
        elif data and name == _DISPATCH:
            self._dispatch(read_object(data), deltas)
        elif data:
            self._chunk(read_object(data), deltas)
            self._repeats.learn(data)

    def _close(self, deltas: list[Delta]) -> None:
        self._ended = True
        if self._finish is None:
            raise BackendError(ErrorKind.CONNECTION, "The stream ended before the answer did.")
        self._close_call(deltas)
        self._join(deltas)
        deltas.append(Finished(_finish(self._finish, self._made_calls, self._refused), self._usage))

    def _chunk(self, chunk: dict[str, Any], deltas: list[Delta]) -> None:
        if chunk.get("usage"):
            self._usage = openai_usage(chunk["usage"]) or Usage()
        choice = _first_choice(chunk)
        if choice is None:
            return
        said = choice.get("delta")
        if not isinstance(said, dict):
            said = {"content": choice.get("text")}
        thought, text = _said(said)
        if thought:
            self._say(ReasoningDelta, thought, deltas)
        if text:
            self._say(TextDelta, text, deltas)
        if said.get("refusal"):
            self._refused = True
        if said.get("tool_calls"):
            for piece in _pieces(said):
                self._add(piece, deltas)
        if choice.get("finish_reason"):
            self._finish = choice["finish_reason"]
            self._close_call(deltas)

    def _say(self, kind: type[TextDelta | ReasoningDelta], piece: str, deltas: list[Delta]) -> None:
        if kind is not self._kind:
            self._join(deltas)
            self._kind = kind
        self._pieces.append(piece)

    def _join(self, deltas: list[Delta]) -> None:
        if self._pieces:
            deltas.append(self._kind("".join(self._pieces)))
            self._pieces.clear()

    def _dispatch(self, event: dict[str, Any], deltas: list[Delta]) -> None:
        """A whole call that the server has parsed already; the chunks that repeat it are passed over."""
        self._close_call(deltas)
        for piece in _pieces({"tool_calls": [event.get("tool_call")]}):
            self._dispatched.append((piece.index, piece.id))
            self._give(CallDelta(_whole_call(piece)), deltas)

    def _add(self, piece: "_Piece", deltas: list[Delta]) -> None:
        if (piece.index, piece.id) in self._dispatched:
            return
        if self._call is not None and self._call.is_another(piece):
            self._close_call(deltas)
        if self._call is None:
            self._call = _OpenCall(piece.index)
        self._call.add(piece)

    def _close_call(self, deltas: list[Delta]) -> None:
        call, self._call = self._call, None
        if call is not None:
            self._give(call.whole(), deltas)

    def _give(self, call: CallDelta, deltas: list[Delta]) -> None:
        self._made_calls = True
        self._join(deltas)
        deltas.append(call)


class _Piece(NamedTuple):
    """A tool call, or the part of one that a chunk of a stream carries."""

    index: Any
    id: str
    name: str
    arguments: str


def _pieces(message: Mapping[str, Any]) -> Iterator[_Piece]:
    listed = message.get("tool_calls")
    for call in listed if isinstance(listed, list) else ():
        if not isinstance(call, dict):
            continue
        function = call.get("function")
        if not isinstance(function, dict):
            function = {}
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            arguments = "" if arguments is None else dumps(arguments).decode()
        yield _Piece(call.get("index") or 0, str(call.get("id") or ""), str(function.get("name") or ""), arguments)


def _whole_call(piece: _Piece) -> ToolCall:
    return ToolCall(piece.id, piece.name, piece.arguments)


def _first_choice(answer: dict[str, Any]) -> dict[str, Any] | None:
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else None


def _only_said(data: bytes) -> ChunkText | None:
    """What a chunk says, where that is all there is in it."""
    try:
        chunk = read_object(data)
    except BackendError:
        return None
    choice = _first_choice(chunk) or {}
    said = choice.get("delta")
    if not isinstance(said, dict) or said.get("refusal") or said.get("tool_calls"):
        return None
    thought, text = _said(said)
    if chunk.get("usage") or choice.get("finish_reason") or bool(thought) is bool(text):
        return None
    return (ReasoningDelta, thought) if thought else (TextDelta, text)


def _said(message: Mapping[str, Any]) -> tuple[str, str]:
    """What was thought, then what was said; either may be empty."""
    thought = message.get("reasoning_content") or message.get("reasoning")
    text = _text(message.get("content")) or _text(message.get("refusal"))
    return thought if isinstance(thought, str) else "", text


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_text(part.get("text")) if isinstance(part, dict) else _text(part) for part in content)
    return ""


def _finish(reason: Any, made_calls: bool, refused: bool) -> FinishReason:
    if reason in _GIVEN_UP:
        raise BackendError(ErrorKind.SERVER, f"The server gave the answer up (finish_reason {reason!r}).")
    if refused:
        return "refusal"
    if made_calls and reason != "length":
        return "calls"
    return _FINISH.get(reason, "stop") if isinstance(reason, str) else "stop"
