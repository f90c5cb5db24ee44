"""Anthropic's Messages API on the simulated model: requests as chat requests, and responses."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from ..answer import SimReply
from ..generation import Generation
from ..request_errors import RequestError
from ..request_reader import Requests
from ..tokens import text_of

_STOP = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
Block = dict[str, Any]


def read_message(requests: Requests, body: dict[str, Any]) -> Generation:
    """Parses a request. Raises RequestError. A streamed answer is sent in one piece."""
    if not isinstance(body.get("max_tokens"), int):
        raise RequestError("max_tokens: Field required", param="max_tokens")
    try:
        chat = chat_body(body)
    except (AttributeError, KeyError, TypeError) as error:
        raise RequestError(f"messages: cannot be read: {error!r}") from error
    generation = requests.chat(chat)
    openai = generation.encoder
    encoder = AnthropicBytes(openai.number, openai.model, bool(body.get("stream")))
    return generation._replace(foreign_encoder=encoder)


def chat_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """The equivalent chat request."""
    messages: list[dict[str, Any]] = []
    if system := text_of(body.get("system")):
        messages.append({"role": "system", "content": system})
    for message in body["messages"]:
        messages += _chat_messages(message)
    chat: dict[str, Any] = {"model": body.get("model"), "messages": messages, "max_tokens": body["max_tokens"]}
    if tools := body.get("tools"):
        chat["tools"] = [_tool(tool) for tool in tools]
        chat["tool_choice"] = _tool_choice(body.get("tool_choice"))
    wanted = (body.get("output_config") or {}).get("format") or body.get("output_format")
    if wanted:
        chat["response_format"] = {"type": "json_schema", "json_schema": {"name": "r", "schema": wanted["schema"]}}
    return chat


def anthropic_error(status: int, message: str, kind: str = "", param: str | None = None) -> bytes:
    error = {"type": _KINDS.get(status, "api_error"), "message": message}
    return orjson.dumps({"type": "error", "error": error, "request_id": None})


class AnthropicBytes(NamedTuple):
    """Encoder of the response to a message."""

    number: int
    model: str
    is_stream: bool

    @property
    def content_type(self) -> bytes:
        return b"text/event-stream; charset=utf-8" if self.is_stream else b"application/json"

    def error(self, status: int, message: str, kind: str, param: str | None = None) -> bytes:
        return anthropic_error(status, message)

    def plain(self, replies: Sequence[SimReply], usage: dict[str, Any]) -> bytes:
        message = self._message(replies[0], usage)
        return _events(message) if self.is_stream else orjson.dumps(message)

    def _message(self, reply: SimReply, usage: dict[str, Any]) -> dict[str, Any]:
        content: list[Block] = [{"type": "text", "text": reply.text}] if reply.text else []
        for index, call in enumerate(reply.calls):
            name = {"type": "tool_use", "id": f"toolu_{self.number}_{index}", "name": call.name}
            content.append({**name, "input": _arguments(call.arguments)})
        cached = (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0
        return {
            "id": f"msg_{self.number}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": _STOP[reply.finish_reason],
            "stop_sequence": None,
            "usage": {
                "input_tokens": usage["prompt_tokens"] - cached,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": cached,
                "output_tokens": usage["completion_tokens"],
                "service_tier": "standard",
            },
        }


def _chat_messages(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    if not isinstance(content, list):
        return [{"role": message["role"], "content": content}]
    results = [_tool_result(block) for block in content if block.get("type") == "tool_result"]
    calls = [_call(block) for block in content if block.get("type") == "tool_use"]
    text = "".join(block["text"] for block in content if block.get("type") == "text")
    rest: dict[str, Any] = {"role": message["role"], "content": text}
    if calls:
        rest["tool_calls"] = calls
    return [*results, rest] if text or calls or not results else results


def _tool_result(block: Block) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": block["tool_use_id"], "content": text_of(block.get("content"))}


def _call(block: Block) -> dict[str, Any]:
    function = {"name": block["name"], "arguments": orjson.dumps(block.get("input") or {}).decode()}
    return {"id": block["id"], "type": "function", "function": function}


def _tool(tool: Block) -> dict[str, Any]:
    function = {"name": tool["name"], "description": tool.get("description", ""), "parameters": tool["input_schema"]}
    return {"type": "function", "function": function}


def _tool_choice(choice: Mapping[str, Any] | None) -> Any:
    match choice:
        case {"type": "any"}:
            return "required"
        case {"type": "tool", "name": name}:
            return {"type": "function", "function": {"name": name}}
        case {"type": "none"}:
            return "none"
    return "auto"


def _arguments(text: str) -> Any:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _events(message: dict[str, Any]) -> bytes:
    started = {**message, "content": [], "stop_reason": None, "usage": {**message["usage"], "output_tokens": 0}}
    parts = [_event("message_start", message=started)]
    for index, block in enumerate(message["content"]):
        is_text = block["type"] == "text"
        empty = {**block, "text": ""} if is_text else {**block, "input": {}}
        delta = (
            {"type": "text_delta", "text": block["text"]}
            if is_text
            else {"type": "input_json_delta", "partial_json": orjson.dumps(block["input"]).decode()}
        )
        parts += [
            _event("content_block_start", index=index, content_block=empty),
            _event("content_block_delta", index=index, delta=delta),
            _event("content_block_stop", index=index),
        ]
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    parts += [_event("message_delta", delta=ended, usage=message["usage"]), _event("message_stop")]
    return b"".join(parts)


def _event(kind: str, **data: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **data}))
