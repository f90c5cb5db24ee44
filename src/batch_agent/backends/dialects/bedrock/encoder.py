"""Encoder of requests to Amazon Bedrock's Converse API."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal, assert_never
from urllib.parse import quote

from ....core.fast_dataclass import dataclass
from ....core.images import ImageRef
from ....core.json import dumps
from ....core.messages import Assistant, Message, Thought, ToolCall, ToolResult, ToolResults, User
from ....core.requests import Delta, Lane, Request
from ....core.schema import JsonSchema, strict_form
from ..dialect import EncodingCache, TextBlock, arguments_object, base64_of, cache_blocks, sanitized_id
from .decoder import BedrockStreamDecoder, decode_reply

Role = Literal["user", "assistant"]


@dataclass(frozen=True, slots=True)
class CacheSupport:
    """Positions where a model accepts cache points; a request may have four."""

    in_tools: bool
    after: tuple[int, ...]
    """User messages that may end with a cache point, counted from 1."""


_CLAUDE = CacheSupport(in_tools=True, after=(1, 2, 4))
_NOVA = CacheSupport(in_tools=False, after=(1,))
_CACHE_SUPPORT = (
    (r"anthropic\.claude-3-5-haiku", _CLAUDE),
    (r"anthropic\.claude-3-7-sonnet", _CLAUDE),
    (r"anthropic\.claude-[a-z]+-\d", _CLAUDE),  # from Claude 4 on the family comes before the number
    (r"amazon\.nova-(micro|lite|pro|premier)", _NOVA),
)
_SCHEMA_MODELS = (
    r"anthropic\.claude-(haiku|sonnet|opus)-4-5",
    r"anthropic\.claude-(sonnet|opus)-4-6",
    r"deepseek\.v3",
    r"google\.gemma-3-(12|27)b",
    r"mistral\.(devstral-2|magistral-small|ministral-3|mistral-large-3|voxtral)",
    r"moonshot(ai)?\.kimi-k2",
    r"nvidia\.nemotron",
    r"openai\.gpt-oss",
    r"qwen\.qwen3",
    r"zai\.glm-(4\.7|5)",
)
"""Models that support schemas, from the user guide and the model cards. For other models the schema is part of the
prompt."""
_MAX_CACHE_POINTS = 4
_CACHE_POINT = {"cachePoint": {"type": "default"}}
_VALID_ID = re.compile("[a-zA-Z0-9_.:-]{1,64}")
_INVALID_NAME_CHARACTER = re.compile("[^a-zA-Z0-9_-]")
_FORMATS = {"png": "png", "jpg": "jpeg", "jpeg": "jpeg", "gif": "gif", "webp": "webp"}
_EMPTY_TEXT = "(empty)"
"""Replaces blank text, which the API rejects."""


@cache
def cache_support(model: str) -> CacheSupport | None:
    return next((found for pattern, found in _CACHE_SUPPORT if _matches(model, pattern)), None)


def supports_schema(model: str) -> bool:
    """Whether the service enforces a JSON schema for this model."""
    return any(_matches(model, pattern) for pattern in _SCHEMA_MODELS)


def _matches(model: str, pattern: str) -> bool:
    """Model ids may have a region prefix (us.anthropic...), or be the end of an ARN."""
    return re.search(rf"(^|[./]){pattern}", model) is not None


class BedrockConverse:
    """Bedrock Converse. The parts that a run's requests share are encoded once and come first, so that the bytes of
    turn n, up to its last content block, are a prefix of those of turn n+1."""

    stream_type = "application/vnd.amazon.eventstream"

    def __init__(self) -> None:
        self._cache = EncodingCache()

    def path(self, request: Request) -> str:
        """Percent-encoded: ids contain colons, and ARNs slashes."""
        return f"/model/{quote(request.model, safe='')}/{'converse-stream' if request.stream else 'converse'}"

    def headers(self, request: Request) -> Mapping[str, str] | None:
        return None

    def encode(self, request: Request) -> bytes:
        shared = (request.prompt, request.model, request.sampling)
        head = self._cache.get(shared, lambda: _head(request)) if request.must_call is None else _head(request)
        tail = self._cache.get((request.sampling, request.answer_schema), lambda: _tail(request))
        if request.lane == "flex":
            tail = tail[:-1] + b',"serviceTier":{"type":"flex"}}'
        return head + _messages(request) + tail

    def decode_reply(self, body: bytes, lane: Lane = "standard") -> list[Delta]:
        return decode_reply(body, lane)

    def decoder(self, lane: Lane = "standard") -> BedrockStreamDecoder:
        return BedrockStreamDecoder(lane)


def _head(request: Request) -> bytes:
    prompt, sampling, support = request.prompt, request.sampling, cache_support(request.model)
    body: dict[str, Any] = {}
    # The cache covers the tools first, then the system prompt: one point at the end of both caches them for all agents.
    if prompt.tools:
        body["toolConfig"] = {"tools": [_tool(t.name, t.description, t.parameters) for t in prompt.tools]}
        if request.must_call is not None:
            name = request.must_call
            body["toolConfig"]["toolChoice"] = {"tool": {"name": name}} if name else {"any": {}}
        if support and support.in_tools and not prompt.system.strip():
            body["toolConfig"]["tools"].append(_CACHE_POINT)
    if prompt.system.strip():
        body["system"] = [{"text": prompt.system}, *([_CACHE_POINT] if support else [])]
    settings = {
        "maxTokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "topP": sampling.top_p,
        "stopSequences": list(sampling.stop) or None,
    }
    if given := {name: value for name, value in settings.items() if value is not None}:
        body["inferenceConfig"] = given
    for name, value in sampling.extra.items():
        if name != "outputConfig":  # added at the end, with the schema
            default = body.get(name)
            body[name] = {**default, **value} if isinstance(default, dict) and isinstance(value, Mapping) else value
    return dumps(body)[:-1] + (b',"messages":[' if body else b'"messages":[')


def _tail(request: Request) -> bytes:
    """Tool calls are not forbidden here: the API has no such option, and rejects a conversation with calls but without
    tools."""
    config: dict[str, Any] = dict(request.sampling.extra.get("outputConfig") or {})
    if request.answer_schema is not None:
        config["textFormat"] = _text_format(request.answer_schema)
    return b']}],"outputConfig":' + dumps(config) + b"}" if config else b"]}]}"


def _text_format(schema: JsonSchema) -> dict[str, Any]:
    text = dumps(strict_form(schema, keeps_limits=False) or schema).decode()
    return {"type": "json_schema", "structure": {"jsonSchema": {"schema": text, "name": "answer"}}}


def _tool(name: str, description: str, parameters: JsonSchema) -> dict[str, Any]:
    spec: dict[str, Any] = {"name": name, "inputSchema": {"json": {"type": "object", **parameters}}}
    return {"toolSpec": {**spec, "description": description} if description.strip() else spec}


def _messages(request: Request) -> bytes:
    """All messages without the end of the last one, which `_tail` adds. Roles must alternate, so consecutive messages
    of one role are joined."""
    marked = _marked_messages(request)
    parts: list[bytes] = []
    last: Role | None = None
    user_messages = 0
    for message in request.messages:
        role: Role = "assistant" if isinstance(message, Assistant) else "user"
        if role == last:
            parts.append(b",")
        else:
            parts.append((b"]}," if last else b"") + b'{"role":"' + role.encode() + b'","content":[')
        last = role
        parts.append(b",".join(_blocks(message, marks_shared=cache_support(request.model) is not None)))
        if role == "user":
            user_messages += 1
            if user_messages in marked:
                parts.append(b"," + dumps(_CACHE_POINT))
    return b"".join(parts)


def _marked_messages(request: Request) -> tuple[int, ...]:
    """User messages that end with a cache point, for agents with tools, which send their conversation again.

    A point at the end of the last message would cache the most, but would move with each turn and change the bytes
    before it. Points are therefore at fixed positions, with growing distances, that do not depend on the turn."""
    support = cache_support(request.model) if request.prompt.tools else None
    if support is None:
        return ()
    first = request.messages[0]
    marks = sum(block.is_marked for block in cache_blocks(first)) if isinstance(first, User) else 0
    return support.after[: _MAX_CACHE_POINTS - 1 - marks]  # one is at the end of the shared prompt


def _blocks(message: Message, *, marks_shared: bool) -> Iterator[bytes]:
    match message:
        case User():
            for block in cache_blocks(message, marks=marks_shared):
                yield _text(block.text) if isinstance(block, TextBlock) else dumps(_image(block.image))
                if block.is_marked:
                    yield dumps(_CACHE_POINT)
        case Assistant():
            for thought in message.thoughts:
                if thought.signature or thought.redacted:
                    yield _reasoning(thought)
            if message.text.strip() or not message.calls:
                yield _text(message.text)
            for call in message.calls:
                yield _tool_use(call)
        case ToolResults():
            for result in message.results:
                yield _tool_result(result)
        case _:
            assert_never(message)


def _text(text: str) -> bytes:
    return dumps({"text": text if text.strip() else _EMPTY_TEXT})


def _image(image: ImageRef) -> dict[str, Any]:
    """An image. The service takes bytes, or an object in S3 whose name ends in its format."""
    if image.url:
        suffix = image.url.rpartition(".")[2].lower()
        source = {"s3Location": {"uri": image.url}}
        return {"image": {"format": _FORMATS.get(suffix, "png"), "source": source}}
    return {"image": {"format": image.media_type.partition("/")[2], "source": {"bytes": base64_of(image)}}}


def _reasoning(thought: Thought) -> bytes:
    if thought.redacted:
        return dumps({"reasoningContent": {"redactedContent": thought.redacted}})
    return dumps({"reasoningContent": {"reasoningText": {"text": thought.text, "signature": thought.signature}}})


def _tool_use(call: ToolCall) -> bytes:
    """A tool call with the model's own arguments, byte for byte."""
    use = dumps({"toolUseId": sanitized_id(call, _VALID_ID), "name": _name(call)})
    return b'{"toolUse":' + use[:-1] + b',"input":' + arguments_object(call) + b"}}"


def _tool_result(result: ToolResult) -> bytes:
    content: list[dict[str, Any]] = [{"text": result.content if result.content.strip() else _EMPTY_TEXT}]
    content += map(_image, result.images)
    block: dict[str, Any] = {"toolUseId": sanitized_id(result.call, _VALID_ID), "content": content}
    return dumps({"toolResult": {**block, "status": "error"} if result.is_error else block})


def _name(call: ToolCall) -> str:
    """The tool's name. Models call tools that do not exist, by names that the API would reject."""
    return _INVALID_NAME_CHARACTER.sub("_", call.name)[:64] or "_"
