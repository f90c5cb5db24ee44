"""Requests in the OpenAI chat completions format."""

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, assert_never

from ....core.json import dumps
from ....core.messages import Assistant, Message, Prompt, ToolResults, User
from ....core.requests import Delta, Request
from ....core.schema import JsonSchema, strict_form
from ...flavors import OpenAIExtensions
from ..dialect import EncodingCache
from .decoder import OpenAIStreamDecoder, decode_reply

PATH = "/chat/completions"


class OpenAIChat:
    """What a run's requests share is serialised once and comes first, so that turn n's bytes, up to the end of its
    messages, are a prefix of turn n+1's."""

    stream_type = "text/event-stream"

    def __init__(
        self, extras: OpenAIExtensions | None = None, adapt_schema: Callable[[JsonSchema], JsonSchema] | None = None
    ) -> None:
        """`adapt_schema` says the same schema in the words that the server's grammar engine takes best."""
        self._extras = extras or OpenAIExtensions()
        self._adapt_schema = adapt_schema
        self._has_more = bool(self._extras.request_id or self._extras.session_field or self._extras.priority)
        self._once = EncodingCache()
        self._sent = 0

    def path(self, request: Request) -> str:
        return PATH

    def headers(self, request: Request) -> Mapping[str, str] | None:
        named = self._extras.session_header
        return {named: request.agent} if named and request.agent else None

    def encode(self, request: Request) -> bytes:
        shared = (request.prompt, request.model, request.sampling)
        head = self._once.get(shared, lambda: self._head(request))
        messages = b",".join([self._message(message) for message in request.messages])
        return head + messages + self._tail(request)

    def decode_reply(self, body: bytes) -> list[Delta]:
        return decode_reply(body)

    def decoder(self) -> OpenAIStreamDecoder:
        return OpenAIStreamDecoder()

    def _head(self, request: Request) -> bytes:
        sampling, extras = request.sampling, self._extras
        body: dict[str, Any] = {"model": request.model}
        settings = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
            "stop": list(sampling.stop) or None,
            extras.max_tokens_field: sampling.max_tokens,
            "cache_salt": request.prompt.cache_salt if extras.cache_salt else None,
            "prompt_cache_key": _cache_key(request.prompt) if extras.cache_key else None,
        }
        body |= {name: value for name, value in settings.items() if value is not None}
        body |= sampling.extra
        if extras.priority == "agent_hints":
            body.pop("nvext", None)  # it comes at the end, with the hints
        if request.prompt.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {"name": t.name, "description": t.description, "parameters": t.parameters},
                }
                for t in request.prompt.tools
            ]
        system = [dumps({"role": "system", "content": request.prompt.system}), b","] if request.prompt.system else []
        return b"".join([dumps(body)[:-1], b',"messages":[', *system])

    def _tail(self, request: Request) -> bytes:
        tail, schema = b"]", request.answer_schema
        if request.prompt.tools and not request.may_call_tools:
            rules_out_calls = schema is not None and self._extras.none_drops_tools
            tail += b"" if rules_out_calls else b',"tool_choice":"none"'
        elif request.prompt.tools and request.must_call is not None:
            tail += b',"tool_choice":' + dumps(_tool_choice(request.must_call))
        if schema is not None:
            tail += self._once.get((schema,), lambda: self._response_format(schema))
        if request.stream:
            tail += b',"stream":true,"stream_options":{"include_usage":true}'
        more = self._about(request) if self._has_more else None
        return tail + (b"," + dumps(more)[1:] if more else b"}")

    def _about(self, request: Request) -> dict[str, Any]:
        """What the server may know of a request beside its content."""
        extras, about = self._extras, dict[str, Any]()
        if extras.request_id and request.agent:
            self._sent += 1  # a request that is sent again needs another id
            about["request_id"] = f"{request.agent}-{request.turn}-{self._sent}"
        if extras.session_field and request.agent:
            about[extras.session_field] = request.agent
        if extras.priority == "agent_hints":
            if hints := _agent_hints(request):
                about["nvext"] = hints
        elif extras.priority == "high_first" and request.agent:
            about["priority"] = request.priority  # also 0: none at all is the lowest that there is
        elif extras.priority == "low_first" and request.priority:
            about["priority"] = -request.priority
        return about

    def _response_format(self, schema: JsonSchema) -> bytes:
        asked: dict[str, Any] = {"name": "answer", "schema": schema}
        if self._adapt_schema is not None:
            asked["schema"] = self._adapt_schema(schema)
        elif self._extras.strict_schema and (strict := strict_form(schema)) is not None:
            asked |= {"schema": strict, "strict": True}
        return b',"response_format":' + dumps({"type": "json_schema", "json_schema": asked})

    def _message(self, message: Message) -> bytes:
        match message:
            case User():
                return dumps({"role": "user", "content": message.text})
            case Assistant():
                return dumps(self._assistant(message))
            case ToolResults():
                return b",".join(
                    [
                        dumps({"role": "tool", "tool_call_id": result.call.id, "content": result.content})
                        for result in message.results
                    ]
                )
            case _:
                assert_never(message)

    def _assistant(self, message: Assistant) -> dict[str, Any]:
        body: dict[str, Any] = {"role": "assistant", "content": message.text or (None if message.calls else "")}
        if self._extras.reasoning_field and message.thoughts:
            body[self._extras.reasoning_field] = "".join(thought.text for thought in message.thoughts)
        if message.calls:
            body["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in message.calls
            ]
        return body


def _tool_choice(name: str) -> Any:
    return {"type": "function", "function": {"name": name}} if name else "required"


def _agent_hints(request: Request) -> dict[str, Any]:
    """Dynamo's extension, with what the user put there. Never `speculative_prefill`: it would render the next turn
    without its tools."""
    hints: dict[str, Any] = {}
    if request.priority:
        hints["priority"] = request.priority
    if request.sampling.max_tokens is not None:
        hints["osl"] = request.sampling.max_tokens
    given = request.sampling.extra.get("nvext") or {}
    return {**given, "agent_hints": {**hints, **(given.get("agent_hints") or {})}} if hints else dict(given)


def _cache_key(prompt: Prompt) -> str:
    """The same for every run with the same prefix."""
    prefix = blake2b(prompt.system.encode(errors="replace"), digest_size=12)
    for tool in prompt.tools:
        prefix.update(dumps([tool.name, tool.description, tool.parameters]))
    return prefix.hexdigest()
