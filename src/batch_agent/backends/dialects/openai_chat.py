"""The OpenAI chat completions format, as many servers speak it, with their liberties."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

import orjson

from ...core.errors import BackendError, ErrorKind
from ...core.messages import Assistant, Message, ToolCall, ToolResults, User
from ...core.requests import (
    CallDelta,
    Delta,
    Finished,
    FinishReason,
    ReasoningDelta,
    Request,
    TextDelta,
    Usage,
)
from ...core.schema import JsonSchema
from ..sse import SseParser

PATH = "/chat/completions"

_FINISH: Mapping[str, FinishReason] = {
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "calls",
    "function_call": "calls",
    "content_filter": "refusal",
}


class OpenAIChat:
    """Encodes requests. What a run's requests share is serialised once and comes first, so that turn n's bytes, up
    to the end of its messages, are a prefix of turn n+1's."""

    def __init__(self, max_tokens_field: str = "max_tokens") -> None:
        self._max_tokens_field = max_tokens_field
        self._once: dict[tuple[int, ...], tuple[object, bytes]] = {}

    def encode(self, request: Request) -> bytes:
        shared = (request.prompt, request.model, request.sampling)
        head = self._cached(shared, lambda: self._head(request))
        messages = b",".join([_encode_message(message) for message in request.messages])
        return head + messages + self._tail(request)

    def _head(self, request: Request) -> bytes:
        sampling = request.sampling
        body: dict[str, Any] = {"model": request.model}
        settings = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
            "stop": list(sampling.stop) or None,
            self._max_tokens_field: sampling.max_tokens,
        }
        body |= {name: value for name, value in settings.items() if value is not None}
        body |= sampling.extra
        if request.prompt.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {"name": t.name, "description": t.description, "parameters": t.parameters},
                }
                for t in request.prompt.tools
            ]
        system = (
            [orjson.dumps({"role": "system", "content": request.prompt.system}), b","] if request.prompt.system else []
        )
        return b"".join([orjson.dumps(body)[:-1], b',"messages":[', *system])

    def _tail(self, request: Request) -> bytes:
        tail = b"]"
        if request.prompt.tools and not request.may_call_tools:
            tail += b',"tool_choice":"none"'
        schema = request.answer_schema
        if schema is not None:
            tail += self._cached((schema,), lambda: _response_format(schema))
        if request.stream:
            tail += b',"stream":true,"stream_options":{"include_usage":true}'
        return tail + b"}"

    def _cached(self, shared: tuple[object, ...], make: Callable[[], bytes]) -> bytes:
        """Bytes that depend only on the identity of `shared`, which is kept alive so that no other takes its place."""
        key = tuple(map(id, shared))
        found = self._once.get(key)
        if found is None:
            found = self._once[key] = (shared, make())
        return found[1]


def _response_format(schema: JsonSchema) -> bytes:
    asked = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return b',"response_format":' + orjson.dumps(asked)


def _encode_message(message: Message) -> bytes:
    match message:
        case User():
            return orjson.dumps({"role": "user", "content": message.text})
        case Assistant():
            return orjson.dumps(_assistant(message))
        case ToolResults():
            return b",".join(
                [
                    orjson.dumps({"role": "tool", "tool_call_id": result.call.id, "content": result.content})
                    for result in message.results
                ]
            )
        case _:
            assert_never(message)


def _assistant(message: Assistant) -> dict[str, Any]:
    body: dict[str, Any] = {"role": "assistant", "content": message.text or (None if message.calls else "")}
    if message.calls:
        body["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    return body


def decode_reply(body: bytes) -> list[Delta]:
    """A plain answer as deltas. Raises BackendError for what is not of the format."""
    answer = _object(body)
    choice = _first_choice(answer)
    if choice is None:
        raise BackendError(ErrorKind.SERVER, f"The answer has no choices: {body[:200]!r}")
    message = choice.get("message")
    if not isinstance(message, dict):
        message = {"content": choice.get("text")}
    deltas: list[Delta] = []
    deltas += _said(message)
    calls = [_call(call) for call in message.get("tool_calls") or () if isinstance(call, dict)]
    deltas += [CallDelta(call) for call in calls]
    finish = _finish(choice.get("finish_reason"), bool(calls), bool(message.get("refusal")))
    deltas.append(Finished(finish, _usage(answer.get("usage"))))
    return deltas


@dataclass(slots=True)
class _CallPieces:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)

    def whole(self) -> CallDelta:
        return CallDelta(ToolCall(self.id, self.name, "".join(self.arguments)))


class StreamDecoder:
    """Deltas from the bytes of a streamed answer. A tool call is given out as soon as it is whole."""

    def __init__(self) -> None:
        self._events = SseParser()
        self._calls: dict[int, _CallPieces] = {}
        self._open_call: int | None = None
        self._made_calls = False
        self._refused = False
        self._finish: str | None = None
        self._usage = Usage()
        self._ended = False

    def feed(self, chunk: bytes) -> Iterator[Delta]:
        for event in self._events.feed(chunk):
            if self._ended:
                return
            if event.data.strip() == b"[DONE]":
                self._ended = True
                yield from self.close()
            else:
                yield from self._chunk(_object(event.data))

    def close(self) -> Iterator[Delta]:
        """The last deltas, when the bytes are over. Raises BackendError for an answer that was cut off."""
        self._ended = True
        if self._finish is None:
            raise BackendError(ErrorKind.CONNECTION, "The stream ended before the answer did.")
        yield from self._close_call()
        yield Finished(_finish(self._finish, self._made_calls, self._refused), self._usage)

    @property
    def ended(self) -> bool:
        return self._ended

    def _chunk(self, chunk: dict[str, Any]) -> Iterator[Delta]:
        if chunk.get("usage"):
            self._usage = _usage(chunk["usage"])
        choice = _first_choice(chunk)
        if choice is None:
            return
        said = choice.get("delta")
        if not isinstance(said, dict):
            said = {"content": choice.get("text")}
        self._refused = self._refused or bool(said.get("refusal"))
        yield from _said(said)
        for piece in said.get("tool_calls") or ():
            yield from self._call_piece(piece)
        if choice.get("finish_reason"):
            self._finish = choice["finish_reason"]
            yield from self._close_call()

    def _call_piece(self, piece: dict[str, Any]) -> Iterator[Delta]:
        index = piece.get("index") or 0
        if index != self._open_call:
            yield from self._close_call()
            self._open_call = index
            self._calls[index] = _CallPieces()
        call = self._calls[index]
        function = piece.get("function") or {}
        call.id = piece.get("id") or call.id
        call.name = function.get("name") or call.name
        arguments = function.get("arguments")
        if arguments:
            call.arguments.append(arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode())

    def _close_call(self) -> Iterator[Delta]:
        if self._open_call is not None:
            self._made_calls = True
            yield self._calls.pop(self._open_call).whole()
            self._open_call = None


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BackendError(ErrorKind.SERVER, f"The server's answer is not JSON: {data[:200]!r}") from error
    if not isinstance(value, dict):
        raise BackendError(ErrorKind.SERVER, f"The server's answer is not an object: {data[:200]!r}")
    if value.get("error"):
        raise BackendError(ErrorKind.SERVER, f"The server reported: {error_message(value)}")
    return value


def error_message(body: Mapping[str, Any]) -> str:
    """The server's own words, wherever it puts them."""
    error = body.get("error") or body.get("message") or body.get("detail") or body
    if isinstance(error, Mapping):
        error = error.get("message") or dict(error)
    return str(error)


def _first_choice(answer: dict[str, Any]) -> dict[str, Any] | None:
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else None


def _said(message: Mapping[str, Any]) -> list[Delta]:
    said: list[Delta] = []
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str) and reasoning:
        said.append(ReasoningDelta(reasoning))
    text = _text(message.get("content")) or _text(message.get("refusal"))
    if text:
        said.append(TextDelta(text))
    return said


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_text(part.get("text")) if isinstance(part, dict) else _text(part) for part in content)
    return ""


def _call(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function") or {}
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments or {}).decode()
    return ToolCall(call.get("id") or "", function.get("name") or "", text)


def _finish(reason: str | None, made_calls: bool, refused: bool) -> FinishReason:
    if refused:
        return "refusal"
    if made_calls and reason != "length":
        return "calls"
    return _FINISH.get(reason or "", "stop")


def _usage(usage: Any) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        input=usage.get("prompt_tokens") or 0,
        cached=details.get("cached_tokens") or 0,
        output=usage.get("completion_tokens") or 0,
    )
