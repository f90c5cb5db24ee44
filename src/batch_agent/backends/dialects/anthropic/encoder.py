"""Encoder of requests in the Anthropic Messages format."""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, assert_never

from ....core.images import ImageRef
from ....core.json import dumps
from ....core.messages import Assistant, Message, Prompt, Thought, ToolCall, ToolResult, ToolResults, User
from ....core.requests import Delta, Lane, Request, Sampling
from ....core.schema import JsonSchema, strict_form
from ..conversation_cache import ConversationCache
from ..dialect import EncodingCache, ImageBlock, TextBlock, arguments_object, base64_of, cache_blocks, sanitized_id
from .decoder import AnthropicStreamDecoder, decode_reply

PATH = "/messages"
_DEFAULT_MAX_TOKENS = 8192
"""Limit if the user sets none, because the API requires one."""
_EPHEMERAL = {"type": "ephemeral"}
_TAIL_FIELDS = ("tool_choice", "output_config", "cache_control", "stream")
"""Fields that may differ between turns, and therefore follow the messages."""
_VALID_ID = re.compile("[a-zA-Z0-9_-]+")


class AnthropicMessages:
    """Anthropic Messages. The parts that a run's requests share are encoded once and come first, so that the bytes of
    turn n, up to the end of its messages, are a prefix of those of turn n+1. The API's cache covers the tools first,
    then the system prompt."""

    stream_type = "text/event-stream"

    def __init__(self, *, max_output_tokens: int | None = None, strict_schema: bool = False) -> None:
        """`strict_schema`: the server is Anthropic's own, with its rules; other servers are assumed to be more
        lenient."""
        self._max_tokens = min(_DEFAULT_MAX_TOKENS, max_output_tokens or _DEFAULT_MAX_TOKENS)
        self._is_strict = strict_schema
        self._cache = EncodingCache()
        self._conversations = ConversationCache()

    def path(self, request: Request) -> str:
        return PATH

    def headers(self, request: Request) -> Mapping[str, str] | None:
        return None

    def encode(self, request: Request) -> bytes:
        prompt, sampling = request.prompt, request.sampling
        head = self._cache.get((prompt, request.model, sampling), lambda: self._head(request))
        shared_by_tail = (prompt, sampling, request.answer_schema, request.may_call_tools, request.stream)
        # A forced call is rare, and the name of its tool is a new string object each time.
        tail = (
            self._tail(request)
            if request.must_call is not None
            else self._cache.get(shared_by_tail, lambda: self._tail(request))
        )
        cache_control = sampling.extra.get("cache_control", _EPHEMERAL)
        encode = partial(self._message, cache_control=cache_control)
        return head + self._conversations.encode(request.agent, request.messages, encode) + tail

    def decode_reply(self, body: bytes, lane: Lane = "standard") -> list[Delta]:
        return decode_reply(body, lane)

    def decoder(self, lane: Lane = "standard") -> AnthropicStreamDecoder:
        return AnthropicStreamDecoder(lane)

    def _head(self, request: Request) -> bytes:
        prompt, sampling = request.prompt, request.sampling
        settings = {
            "max_tokens": sampling.max_tokens or self._max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "stop_sequences": list(sampling.stop) or None,
            "cache_salt": None if self._is_strict else prompt.cache_salt or None,
        }
        body: dict[str, Any] = {"model": request.model}
        body |= {name: value for name, value in settings.items() if value is not None}
        body |= {name: value for name, value in sampling.extra.items() if name not in _TAIL_FIELDS}
        body |= _shared_prefix(prompt, sampling)
        return dumps(body)[:-1] + b',"messages":['

    def _tail(self, request: Request) -> bytes:
        tail_fields = {name: value for name, value in request.sampling.extra.items() if name in _TAIL_FIELDS}
        if request.prompt.tools and request.may_call_tools:
            tail_fields.setdefault(
                "cache_control", _EPHEMERAL
            )  # up to the last block: the next turn begins with the same bytes
            if request.must_call is not None:
                name = request.must_call
                tail_fields["tool_choice"] = {"type": "tool", "name": name} if name else {"type": "any"}
        elif request.prompt.tools:
            tail_fields["tool_choice"] = {"type": "none"}
        if request.answer_schema is not None:
            tail_fields["output_config"] = {
                **(tail_fields.get("output_config") or {}),
                "format": self._format(request.answer_schema),
            }
        if request.stream:
            tail_fields["stream"] = True
        return b"]" + (b"," + dumps(tail_fields)[1:] if tail_fields else b"}")

    def _format(self, schema: JsonSchema) -> dict[str, Any]:
        strict = strict_form(schema, keeps_limits=False) if self._is_strict else None
        return {"type": "json_schema", "schema": strict or schema}

    def _message(self, message: Message, cache_control: Any) -> bytes:
        match message:
            case User(text):
                blocks = cache_blocks(message, marks=self._is_strict)
                if len(blocks) < 2 and not message.images:
                    return dumps({"role": "user", "content": text})
                return dumps({"role": "user", "content": [_block(block, cache_control) for block in blocks]})
            case Assistant():
                return b'{"role":"assistant","content":[' + b",".join(self._assistant_blocks(message)) + b"]}"
            case ToolResults():
                return dumps({"role": "user", "content": [_tool_result(result) for result in message.results]})
            case _:
                assert_never(message)

    def _assistant_blocks(self, message: Assistant) -> Iterator[bytes]:
        for thought in message.thoughts:
            if thought.signature or thought.redacted or (thought.text and not self._is_strict):
                yield dumps(_thought(thought))
        if message.text.strip() or not message.calls:
            # The API rejects blank text and empty messages.
            yield dumps({"type": "text", "text": message.text if message.text.strip() else "(empty)"})
        for call in message.calls:
            yield _tool_use(call)


def _block(block: TextBlock | ImageBlock, cache_control: Any) -> dict[str, Any]:
    mark = {"cache_control": cache_control} if block.is_marked else {}
    content = {"type": "text", "text": block.text} if isinstance(block, TextBlock) else _image(block.image)
    return {**content, **mark}


def _image(image: ImageRef) -> dict[str, Any]:
    if image.url:
        return {"type": "image", "source": {"type": "url", "url": image.url}}
    source = {"type": "base64", "media_type": image.media_type, "data": base64_of(image)}
    return {"type": "image", "source": source}


def _shared_prefix(prompt: Prompt, sampling: Sampling) -> dict[str, list[dict[str, Any]]]:
    """The tools and the system prompt. Their last block carries the cache mark that all agents share."""
    prefix: dict[str, list[dict[str, Any]]] = {}
    if prompt.tools:
        prefix["tools"] = [
            {"name": t.name, "description": t.description, "input_schema": {"type": "object", **t.parameters}}
            for t in prompt.tools
        ]
    if prompt.system.strip():
        prefix["system"] = [{"type": "text", "text": prompt.system}]
    for blocks in list(prefix.values())[-1:]:
        # The API requires the mark with the longest lifetime first, so the user's own mark applies here too.
        blocks[-1]["cache_control"] = sampling.extra.get("cache_control", _EPHEMERAL)
    return prefix


def _thought(thought: Thought) -> dict[str, str]:
    if thought.redacted:
        return {"type": "redacted_thinking", "data": thought.redacted}
    return {"type": "thinking", "thinking": thought.text, "signature": thought.signature}


def _tool_use(call: ToolCall) -> bytes:
    """A tool call with the model's own arguments, byte for byte."""
    block = dumps({"type": "tool_use", "id": sanitized_id(call, _VALID_ID), "name": call.name})
    return block[:-1] + b',"input":' + arguments_object(call) + b"}"


def _tool_result(result: ToolResult) -> dict[str, Any]:
    content: Any = result.content
    if result.images:
        text = [{"type": "text", "text": content}] if content.strip() else []
        content = [*text, *map(_image, result.images)]
    block = {"type": "tool_result", "tool_use_id": sanitized_id(result.call, _VALID_ID), "content": content}
    return {**block, "is_error": True} if result.is_error else block
