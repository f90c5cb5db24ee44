"""Anthropic's messages API: requests and responses."""

from collections.abc import Iterator, Mapping
from typing import Any

from ...core.json import dumps, loads
from ...core.messages import Assistant, Thought, ToolCall, ToolSpec
from ...core.program_runtime import CompletionRequest
from ...core.requests import FinishReason, Reply, Usage
from ...core.schema import JsonSchema
from . import request_fields as fields
from .api_protocol import ParsedRequest, ResponseMeta
from .conversation_builder import ConversationBuilder, ToolOutput
from .gateway_error import GatewayError
from .json_text import as_object

Block = Mapping[str, Any]


def read(body: Mapping[str, Any]) -> ParsedRequest:
    """Raises GatewayError and RecursionError. Unknown fields are ignored."""
    entries = fields.object_list(body.get("messages"), "messages")
    if not entries:
        raise GatewayError("messages must not be empty.")
    builder = ConversationBuilder()
    for number, message in enumerate(entries):
        _add(builder, message, f"messages[{number}]")
    tools = tuple(
        _tool(tool, f"tools[{number}]") for number, tool in enumerate(fields.object_list(body.get("tools"), "tools"))
    )
    choice, named = _choice(body.get("tool_choice"), tools)
    request = CompletionRequest(
        messages=builder.messages,
        system=fields.system_prompt(fields.text_parts(body.get("system"), "system")),
        tools=tools,
        tool_choice=choice,
        tool_name=named,
        single_call=_takes_one_call(body.get("tool_choice")),
        sampling=fields.sampling(body, "max_tokens", "stop_sequences"),
        answer_schema=_answer_schema(body),
    )
    return ParsedRequest(request, fields.text(body.get("model"), "model"), body.get("stream") is True)


def _add(builder: ConversationBuilder, message: Block, where: str) -> None:
    role, content, at = message.get("role"), message.get("content"), f"{where}.content"
    if role == "assistant":
        builder.assistant(_assistant(content, at))
    elif role == "system":
        builder.user(fields.inline_system_message(fields.joined(content, at)))
    elif role != "user":
        raise GatewayError(f"{where}.role must be user, assistant or system; got {str(role)[:40]!r}.")
    elif isinstance(content, list):
        _user(builder, content, at)
    else:
        builder.user(fields.joined(content, at))


def _user(builder: ConversationBuilder, content: list[Any], where: str) -> None:
    """Adds a user message. Tool results come first, because they answer the previous message; other text follows."""
    results, parts = list[ToolOutput](), list[str]()
    for position, block in enumerate(content):
        at = f"{where}[{position}]"
        if isinstance(block, dict) and block.get("type") == "tool_result":
            output = fields.joined(block.get("content"), f"{at}.content", describe_others=True)
            is_error = block.get("is_error") is True
            results.append(ToolOutput(fields.text(block.get("tool_use_id"), f"{at}.tool_use_id"), output, is_error))
        else:
            parts.append(fields.text_in(block, at))
    builder.results(results)
    if parts or not results:
        builder.user("\n".join(filter(None, parts)))


def _assistant(content: Any, where: str) -> Assistant:
    if not isinstance(content, list):
        return Assistant(fields.joined(content, where))
    parts, calls, thoughts = list[str](), list[ToolCall](), list[Thought]()
    for position, block in enumerate(content):
        at = f"{where}[{position}]"
        match block:
            case {"type": "tool_use"}:
                calls.append(_parse_call(block, at))
            case {"type": "thinking"}:
                thoughts.append(
                    Thought(fields.text(block.get("thinking"), at), fields.text(block.get("signature"), at))
                )
            case {"type": "redacted_thinking"}:
                thoughts.append(Thought(redacted=fields.text(block.get("data"), at)))
            case _:
                parts.append(fields.text_in(block, at))
    return Assistant("\n".join(filter(None, parts)), tuple(calls), tuple(thoughts))


def _parse_call(block: Block, where: str) -> ToolCall:
    value = block.get("input")
    arguments = "{}" if value is None else dumps(value).decode()
    return ToolCall(fields.text(block.get("id"), f"{where}.id"), fields.name_in(block, where), arguments)


def _tool(tool: Block, where: str) -> ToolSpec:
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise GatewayError(
            f"{where} is of type {str(kind)[:40]!r}, a tool that only Anthropic's servers run. Leave it out."
        )
    description = fields.text(tool.get("description"), f"{where}.description")
    return ToolSpec(
        fields.name_in(tool, where), description, fields.schema(tool.get("input_schema"), f"{where}.input_schema")
    )


def _choice(choice: Any, tools: fields.Tools) -> tuple[fields.Choice, str]:
    """Whether a tool must be called, and which one."""
    if not tools:
        return "auto", ""
    match choice:
        case None | {"type": "auto"}:
            return "auto", ""
        case {"type": "none"}:
            return "none", ""
        case {"type": "any"}:
            return "required", ""
        case {"type": "tool", "name": str(name)}:
            return "required", fields.known_tool(name, tools)
    raise GatewayError("tool_choice must be of type 'auto', 'any', 'tool' (with a name) or 'none'.")


def _takes_one_call(choice: Any) -> bool:
    return isinstance(choice, dict) and choice.get("disable_parallel_tool_use") is True


def _answer_schema(body: Mapping[str, Any]) -> JsonSchema | None:
    config = body.get("output_config")
    wanted = config.get("format") if isinstance(config, dict) else None
    match wanted or body.get("output_format"):
        case None:
            return None
        case {"type": "json_schema", "schema": dict(schema)}:
            return fields.schema(schema, "output_config.format.schema")
    raise GatewayError("output_config.format must be of type 'json_schema', with a schema.")


_FINISH: Mapping[FinishReason, str] = {
    "stop": "end_turn",
    "calls": "tool_use",
    "length": "max_tokens",
    "refusal": "refusal",
}
_ERROR_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
Data = dict[str, Any]


class AnthropicProtocol:
    """Anthropic's messages API."""

    keep_alive = b'event: ping\ndata: {"type":"ping"}\n\n'

    def read(self, body: Mapping[str, Any]) -> ParsedRequest:
        return read(body)

    def reply(self, reply: Reply, meta: ResponseMeta) -> bytes:
        content: list[Data] = [_thought(thought) for thought in reply.thoughts]
        if reply.text:
            content.append({"type": "text", "text": reply.text})
        content += [_call(call) | {"input": as_object(call.arguments)} for call in reply.calls]
        return dumps(_message(meta, content, _finish(reply), _usage(reply.usage)))

    def events(self, reply: Reply, meta: ResponseMeta) -> bytes:
        started = _message(meta, [], None, _usage(reply.usage) | {"output_tokens": 0})
        ended = {"stop_reason": _finish(reply), "stop_sequence": None}
        blocks = [
            event
            for index, (start, deltas) in enumerate(_blocks(reply))
            for event in _block_events(index, start, deltas)
        ]
        return b"".join(
            [
                _event("message_start", message=started),
                *blocks,
                _event("message_delta", delta=ended, usage=_usage(reply.usage)),
                _event("message_stop"),
            ]
        )

    def error(self, error: GatewayError) -> bytes:
        return dumps({"type": "error", "error": _error(error)})

    def error_event(self, error: GatewayError, meta: ResponseMeta) -> bytes:
        return _event("error", error=_error(error))


def _message(meta: ResponseMeta, content: list[Data], finish: str | None, usage: Data) -> Data:
    return {
        "id": f"msg_{meta.id}",
        "type": "message",
        "role": "assistant",
        "model": meta.model,
        "content": content,
        "stop_reason": finish,
        "stop_sequence": None,
        "usage": usage,
    }


def _blocks(reply: Reply) -> Iterator[tuple[Data, list[Data]]]:
    """The initial state of each block, and its deltas."""
    for thought in reply.thoughts:
        if thought.redacted:
            yield _thought(thought), []
            continue
        signature = [{"type": "signature_delta", "signature": thought.signature}] if thought.signature else []
        yield _thought(Thought()), [{"type": "thinking_delta", "thinking": thought.text}, *signature]
    if reply.text:
        yield {"type": "text", "text": ""}, [{"type": "text_delta", "text": reply.text}]
    for call in reply.calls:
        yield _call(call), [{"type": "input_json_delta", "partial_json": _object_text(call.arguments)}]


def _block_events(index: int, start: Data, deltas: list[Data]) -> Iterator[bytes]:
    yield _event("content_block_start", index=index, content_block=start)
    for delta in deltas:
        yield _event("content_block_delta", index=index, delta=delta)
    yield _event("content_block_stop", index=index)


def _thought(thought: Thought) -> Data:
    if thought.redacted:
        return {"type": "redacted_thinking", "data": thought.redacted}
    return {"type": "thinking", "thinking": thought.text, "signature": thought.signature}


def _call(call: ToolCall) -> Data:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}


def _object_text(arguments: str) -> str:
    """The model's own text of the arguments, if it is a JSON object."""
    try:
        if isinstance(loads(arguments), dict):
            return arguments
    except (ValueError, RecursionError):
        pass
    return dumps(as_object(arguments)).decode()


def _finish(reply: Reply) -> str:
    return "tool_use" if reply.calls and reply.finish == "stop" else _FINISH[reply.finish]


def _usage(usage: Usage) -> Data:
    return {
        "input_tokens": max(0, usage.input - usage.cached - usage.all_written),
        "cache_creation_input_tokens": usage.all_written,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
    }


def _error(error: GatewayError) -> Data:
    fallback = "api_error" if error.status >= 500 else "invalid_request_error"
    return {"type": _ERROR_TYPES.get(error.status, fallback), "message": str(error)}


def _event(kind: str, **data: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), dumps({"type": kind, **data}))
