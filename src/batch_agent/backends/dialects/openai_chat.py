"""Requests in the OpenAI chat completions format."""

import json
from collections.abc import Callable
from typing import Any, assert_never

import orjson

from ...core.messages import Assistant, Message, ToolResults, User
from ...core.requests import Request
from ...core.schema import JsonSchema

PATH = "/chat/completions"


class OpenAIChat:
    """Encodes requests. What a run's requests share is serialised once and comes first, so that turn n's bytes, up
    to the end of its messages, are a prefix of turn n+1's."""

    def __init__(
        self, max_tokens_field: str = "max_tokens", adapt_schema: Callable[[JsonSchema], JsonSchema] | None = None
    ) -> None:
        """`adapt_schema` says the same schema in the words that the server's grammar engine takes best."""
        self._max_tokens_field = max_tokens_field
        self._adapt_schema = adapt_schema
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
        system = [_message({"role": "system", "content": request.prompt.system}), b","] if request.prompt.system else []
        return b"".join([orjson.dumps(body)[:-1], b',"messages":[', *system])

    def _tail(self, request: Request) -> bytes:
        tail = b"]"
        if request.prompt.tools and not request.may_call_tools:
            tail += b',"tool_choice":"none"'
        schema = request.answer_schema
        if schema is not None:
            tail += self._cached((schema,), lambda: self._response_format(schema))
        if request.stream:
            tail += b',"stream":true,"stream_options":{"include_usage":true}'
        return tail + b"}"

    def _response_format(self, schema: JsonSchema) -> bytes:
        asked = self._adapt_schema(schema) if self._adapt_schema else schema
        body = {"type": "json_schema", "json_schema": {"name": "answer", "schema": asked}}
        return b',"response_format":' + orjson.dumps(body)

    def _cached(self, shared: tuple[object, ...], make: Callable[[], bytes]) -> bytes:
        """Bytes that depend only on the identity of `shared`, which is kept alive so that no other takes its place."""
        key = tuple(map(id, shared))
        found = self._once.get(key)
        if found is None:
            found = self._once[key] = (shared, make())
        return found[1]


def _encode_message(message: Message) -> bytes:
    match message:
        case User():
            return _message({"role": "user", "content": message.text})
        case Assistant():
            return _message(_assistant(message))
        case ToolResults():
            return b",".join(
                [
                    _message({"role": "tool", "tool_call_id": result.call.id, "content": result.content})
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


def _message(body: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:  # half of a surrogate pair, from an odd file name or a broken input
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
