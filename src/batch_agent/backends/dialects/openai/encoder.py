"""Encoder of requests in the OpenAI chat completions format."""

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, assert_never
from urllib.parse import quote

from ....core.images import ImageRef, split_at_images
from ....core.json import dumps
from ....core.messages import Assistant, Message, Prompt, ToolResults, User, chat_tools
from ....core.requests import PRIORITY_STEP, Delta, Lane, Request, unpacked_ids
from ....core.schema import JsonSchema, strict_form
from ...flavors import OpenAIExtensions
from ..conversation_cache import ConversationCache
from ..dialect import EncodingCache, base64_of
from .context_hints import PARAMETERS, hint_fields
from .decoder import OpenAIStreamDecoder, decode_reply
from .token_ids import PROMPT_IDS, TOKEN_FIELDS

PATH = "/chat/completions"


class OpenAIChat:
    """OpenAI chat completions. The parts that a run's requests share are encoded once and come first, so that the
    bytes of turn n, up to the end of its messages, are a prefix of those of turn n+1."""

    stream_type = "text/event-stream"

    def __init__(
        self, extensions: OpenAIExtensions | None = None, adapt_schema: Callable[[JsonSchema], JsonSchema] | None = None
    ) -> None:
        """`adapt_schema` rewrites a schema for the server's grammar engine."""
        self._extensions = extensions or OpenAIExtensions()
        self._adapt_schema = adapt_schema
        self._has_metadata = bool(
            self._extensions.request_id
            or self._extensions.session_field
            or self._extensions.priority
            or self._extensions.context_hints
        )
        self._cache = EncodingCache()
        self._conversations = ConversationCache()
        self._sequence_number = 0

    def path(self, request: Request) -> str:
        if self._extensions.deployment_paths:
            return f"/deployments/{quote(request.model, safe='')}{PATH}"
        return PATH

    def headers(self, request: Request) -> Mapping[str, str] | None:
        header = self._extensions.session_header
        return {header: request.agent} if header and request.agent else None

    def encode(self, request: Request, tail: bytes | None = None) -> bytes:
        """`tail`: what follows the messages, if not what the request says."""
        shared = (request.prompt, request.model, request.sampling)
        head = self._cache.get(shared, lambda: self._head(request))
        messages = self._conversations.encode(request.agent, request.messages, self._message)
        return head + messages + (self._tail(request) if tail is None else tail)

    def decode_reply(self, body: bytes, lane: Lane = "standard") -> list[Delta]:
        return decode_reply(body, lane)

    def decoder(self, lane: Lane = "standard") -> OpenAIStreamDecoder:
        return OpenAIStreamDecoder(lane)

    def encode_rendering(self, request: Request) -> bytes:
        """Body of a request for the ids of the prompt, as the server renders it with all tools."""
        return self.encode(request, b'],"add_generation_prompt":true}')

    def _head(self, request: Request) -> bytes:
        sampling, extensions = request.sampling, self._extensions
        body: dict[str, Any] = {"model": request.model}
        settings = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "stop": list(sampling.stop) or None,
            extensions.max_tokens_field: sampling.max_tokens,
            "cache_salt": request.prompt.cache_salt if extensions.cache_salt else None,
            "prompt_cache_key": _cache_key(request.prompt) if extensions.cache_key else None,
        }
        body |= {name: value for name, value in settings.items() if value is not None}
        body |= sampling.extra
        if extensions.priority == "agent_hints":
            body.pop("nvext", None)  # added at the end, with the hints
        if extensions.context_hints or (request.tokens is not None and extensions.prompt_ids == PARAMETERS):
            body.pop(PARAMETERS, None)  # likewise
        if request.prompt.tools:
            body["tools"] = chat_tools(request.prompt.tools)
        system = [dumps({"role": "system", "content": request.prompt.system}), b","] if request.prompt.system else []
        return b"".join([dumps(body)[:-1], b',"messages":[', *system])

    def _tail(self, request: Request) -> bytes:
        tail, schema = b"]", request.answer_schema
        if request.sampling.seed is not None and self._extensions.seed_field:
            # Here, because it may differ between agents, which share the head.
            seed = request.sampling.seed if request.seed is None else request.seed
            tail += b',"%s":%d' % (self._extensions.seed_field.encode(), seed)
        if request.prompt.tools and not request.may_call_tools:
            rules_out_calls = schema is not None and self._extensions.none_drops_tools
            tail += b"" if rules_out_calls else b',"tool_choice":"none"'
        elif request.prompt.tools and request.must_call is not None:
            tail += b',"tool_choice":' + dumps(self._tool_choice(request.must_call))
        if schema is not None:
            tail += self._cache.get((schema,), lambda: self._response_format(schema))
        if request.lane == "flex":
            tail += b',"service_tier":"flex"'
        if request.stream:
            tail += b',"stream":true'
            tail += b',"stream_options":{"include_usage":true}' if self._extensions.stream_options else b""
        metadata = self._metadata(request) if self._has_metadata else None
        if request.tokens is not None:
            tail += TOKEN_FIELDS
            if request.tokens.prompt_ids or PARAMETERS in request.sampling.extra:
                metadata = _with_prompt_ids(metadata or {}, request, self._extensions.prompt_ids)
        return tail + (b"," + dumps(metadata)[1:] if metadata else b"}")

    def _tool_choice(self, name: str) -> Any:
        if name and self._extensions.named_tool_choice:
            return {"type": "function", "function": {"name": name}}
        return self._extensions.any_tool

    def _metadata(self, request: Request) -> dict[str, Any]:
        """Fields about a request, besides its content."""
        extensions, metadata = self._extensions, dict[str, Any]()
        if extensions.request_id and request.agent:
            self._sequence_number += 1  # a repeated request needs another id
            metadata["request_id"] = f"{request.agent}-{request.turn}-{self._sequence_number}"
        if extensions.session_field and request.agent:
            metadata[extensions.session_field] = request.agent
        if extensions.priority == "agent_hints":
            if hints := _agent_hints(request):
                metadata["nvext"] = hints
        elif extensions.priority and (request.priority or (extensions.missing_priority_is_last and request.agent)):
            priority = self._priority(request)
            metadata["priority"] = -priority if extensions.priority == "low_first" else priority
        if extensions.context_hints and (parameters := _kv_parameters(request)):
            metadata[PARAMETERS] = parameters
        return metadata

    def _priority(self, request: Request) -> int:
        """With eviction by priority: one for all turns of a run, above that of requests without a priority."""
        if not self._extensions.evicts_by_priority:
            return request.priority
        return request.priority // PRIORITY_STEP * PRIORITY_STEP + 1

    def _response_format(self, schema: JsonSchema) -> bytes:
        spec: dict[str, Any] = {"name": "answer", "schema": schema}
        if self._adapt_schema is not None:
            spec["schema"] = self._adapt_schema(schema)
        elif self._extensions.strict_schema and (strict := strict_form(schema)) is not None:
            spec |= {"schema": strict, "strict": True}
        return b',"response_format":' + dumps({"type": "json_schema", "json_schema": spec})

    def _message(self, message: Message) -> bytes:
        match message:
            case User():
                return dumps({"role": "user", "content": _content(message) if message.images else message.text})
            case Assistant():
                return dumps(self._assistant(message))
            case ToolResults():
                return b",".join(_results(message))
            case _:
                assert_never(message)

    def _assistant(self, message: Assistant) -> dict[str, Any]:
        body: dict[str, Any] = {"role": "assistant", "content": message.text or (None if message.calls else "")}
        if self._extensions.reasoning_field and message.thoughts:
            body[self._extensions.reasoning_field] = "".join(thought.text for thought in message.thoughts)
        if message.calls:
            body["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in message.calls
            ]
            if self._extensions.signed_calls and (signature := _signature(message)):
                body["tool_calls"][0]["extra_content"] = {"google": {"thought_signature": signature}}
        return body


def _signature(message: Assistant) -> str:
    """The signature that came with the first call of a message; those of the others are never set."""
    return next((thought.signature for thought in message.thoughts if thought.signature), "")


def _content(message: User) -> list[dict[str, Any]]:
    """Text and images in the order of the message."""
    parts = split_at_images(message.text, message.images)
    return [{"type": "text", "text": part} if isinstance(part, str) else _image(part) for part in parts]


def _image(image: ImageRef) -> dict[str, Any]:
    url = image.url or f"data:{image.media_type};base64,{base64_of(image)}"
    return {"type": "image_url", "image_url": {"url": url}}


def _results(message: ToolResults) -> list[bytes]:
    """A message for each result, and one of the user with their images, if there are any: a tool's message has only
    text."""
    messages, images = list[bytes](), list[dict[str, Any]]()
    for result in message.results:
        messages.append(dumps({"role": "tool", "tool_call_id": result.call.id, "content": result.content}))
        if result.images:
            images.append({"type": "text", "text": f"Images that {result.call.name} returned ({result.call.id}):"})
            images += map(_image, result.images)
    if images:
        messages.append(dumps({"role": "user", "content": images}))
    return messages


def _agent_hints(request: Request) -> dict[str, Any]:
    """Dynamo's extension, merged with the user's. Never `speculative_prefill`: it would render the next turn without
    its tools."""
    hints: dict[str, Any] = {}
    if request.priority:
        hints["priority"] = request.priority
    if request.sampling.max_tokens is not None:
        hints["osl"] = request.sampling.max_tokens
    extra = request.sampling.extra.get("nvext") or {}
    return {**extra, "agent_hints": {**hints, **(extra.get("agent_hints") or {})}} if hints else dict(extra)


def _kv_parameters(request: Request) -> dict[str, Any]:
    """The user's parameters of the KV transfer, with the hint."""
    extra = request.sampling.extra.get(PARAMETERS) or {}
    return dict(extra) if request.hint is None else {**extra, **hint_fields(request.hint, request.turn)}


def _with_prompt_ids(metadata: dict[str, Any], request: Request, input_field: str) -> dict[str, Any]:
    """The fields about a request, with a prompt of ids. vLLM takes it among the parameters of the KV transfer."""
    assert request.tokens is not None
    ids = unpacked_ids(request.tokens.prompt_ids)
    if input_field != PARAMETERS:
        return {**metadata, input_field: ids} if ids else metadata
    parameters = _kv_parameters(request)
    if ids:
        parameters[PROMPT_IDS] = ids
    return {**metadata, PARAMETERS: parameters} if parameters else metadata


def _cache_key(prompt: Prompt) -> str:
    """A key that is equal for all runs with the same prefix."""
    prefix = blake2b(prompt.system.encode(errors="replace"), digest_size=12)
    for tool in prompt.tools:
        prefix.update(dumps([tool.name, tool.description, tool.parameters]))
    return prefix.hexdigest()
