"""OpenAI's chat completions API: requests and responses."""

from collections.abc import Iterator, Mapping
from itertools import groupby, takewhile
from typing import Any

from ...core.json import dumps
from ...core.messages import Assistant, Message, Thought, ToolCall, ToolSpec
from ...core.program_runtime import CompletionRequest
from ...core.requests import FinishReason, Reply, Usage
from ...core.schema import JsonSchema
from . import request_fields as fields
from .api_protocol import ParsedRequest, ResponseMeta
from .conversation_builder import ConversationBuilder, ToolOutput
from .gateway_error import GatewayError

_NO_PARAMETERS: JsonSchema = {"type": "object", "properties": {}}
_SYSTEM = ("system", "developer")


def read(body: Mapping[str, Any]) -> ParsedRequest:
    """Raises GatewayError and RecursionError. Unknown fields are ignored."""
    if body.get("n") not in (None, 1):
        raise GatewayError("n must be 1: a request gets one answer.")
    if body.get("functions"):
        raise GatewayError("functions is not supported; use tools.")
    system, messages = _conversation(fields.object_list(body.get("messages"), "messages"))
    offered = tuple(
        _tool(tool, f"tools[{number}]") for number, tool in enumerate(fields.object_list(body.get("tools"), "tools"))
    )
    tools, choice, named = _choice(body.get("tool_choice"), offered)
    limit = "max_tokens" if body.get("max_completion_tokens") is None else "max_completion_tokens"
    request = CompletionRequest(
        messages=messages,
        system=system,
        tools=tools,
        tool_choice=choice,
        tool_name=named,
        single_call=body.get("parallel_tool_calls") is False,
        sampling=fields.sampling(body, limit, "stop"),
        answer_schema=_answer_schema(body.get("response_format")),
    )
    options = body.get("stream_options")
    counts = isinstance(options, dict) and options.get("include_usage") is True
    return ParsedRequest(request, fields.text(body.get("model"), "model"), body.get("stream") is True, counts)


def _conversation(entries: list[Mapping[str, Any]]) -> tuple[str, tuple[Message, ...]]:
    located = [(f"messages[{number}]", message) for number, message in enumerate(entries)]
    opening = list(takewhile(lambda each: each[1].get("role") in _SYSTEM, located))
    system = [
        part for where, message in opening for part in fields.text_parts(message.get("content"), f"{where}.content")
    ]
    builder = ConversationBuilder()
    for are_results, run in groupby(located[len(opening) :], lambda each: each[1].get("role") == "tool"):
        if are_results:
            builder.results([_tool_output(message, where) for where, message in run])
        else:
            for where, message in run:
                _add(builder, message, where)
    if not builder.messages:
        raise GatewayError("messages must contain at least one message that is not a system message.")
    return fields.system_prompt(system), builder.messages


def _add(builder: ConversationBuilder, message: Mapping[str, Any], where: str) -> None:
    role, content, at = message.get("role"), message.get("content"), f"{where}.content"
    if role == "assistant":
        builder.assistant(_assistant(message, where))
    elif role == "user":
        builder.user(fields.joined(content, at))
    elif role in _SYSTEM:
        builder.user(fields.inline_system_message(fields.joined(content, at)))
    else:
        raise GatewayError(f"{where}.role must be system, developer, user, assistant or tool; got {str(role)[:40]!r}.")


def _tool_output(message: Mapping[str, Any], where: str) -> ToolOutput:
    content = fields.joined(message.get("content"), f"{where}.content", describe_others=True)
    return ToolOutput(fields.text(message.get("tool_call_id"), f"{where}.tool_call_id"), content)


def _assistant(message: Mapping[str, Any], where: str) -> Assistant:
    thinking = message.get("reasoning_content") or message.get("reasoning")
    calls = fields.object_list(message.get("tool_calls"), f"{where}.tool_calls")
    return Assistant(
        fields.joined(message.get("content"), f"{where}.content")
        or fields.text(message.get("refusal"), f"{where}.refusal"),
        tuple(_parse_call(call, f"{where}.tool_calls[{number}]") for number, call in enumerate(calls)),
        (Thought(thinking),) if isinstance(thinking, str) and thinking else (),
    )


def _parse_call(call: Mapping[str, Any], where: str) -> ToolCall:
    function = _function(call, where)
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else dumps(arguments).decode()
    return ToolCall(
        fields.text(call.get("id"), f"{where}.id"), fields.name_in(function, f"{where}.function"), arguments
    )


def _tool(tool: Mapping[str, Any], where: str) -> ToolSpec:
    function = _function(tool, where)
    parameters = function.get("parameters")
    return ToolSpec(
        fields.name_in(function, f"{where}.function"),
        fields.text(function.get("description"), f"{where}.function.description"),
        _NO_PARAMETERS if parameters is None else fields.schema(parameters, f"{where}.function.parameters"),
    )


def _function(entry: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    kind, function = entry.get("type", "function"), entry.get("function")
    if kind not in ("function", None):
        raise GatewayError(f"{where} is of type {str(kind)[:40]!r}; only functions are supported.")
    if not isinstance(function, dict):
        raise GatewayError(f"{where}.function must be an object.")
    return function


def _choice(choice: Any, tools: fields.Tools) -> tuple[fields.Tools, fields.Choice, str]:
    """The offered tools, whether a tool must be called, and which one."""
    if not tools:
        return tools, "auto", ""
    match choice:
        case None | "auto":
            return tools, "auto", ""
        case "none" | "required":
            return tools, choice, ""
        case {"type": "function", "function": {"name": str(name)}}:
            return tools, "required", fields.known_tool(name, tools)
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": list(allowed)}}:
            return _allowed(allowed, tools), mode, ""
    raise GatewayError("tool_choice must be 'auto', 'none', 'required', or name a function.")


def _allowed(allowed: list[Any], tools: fields.Tools) -> fields.Tools:
    """Restricts the request to these tools, which changes the prompt's prefix."""
    entries = [(f"tool_choice.allowed_tools.tools[{number}]", entry) for number, entry in enumerate(allowed)]
    functions = [_function(entry, where) for where, entry in entries if isinstance(entry, dict)]
    names = {
        fields.known_tool(fields.name_in(function, "tool_choice.allowed_tools.tools"), tools) for function in functions
    }
    if not names:
        raise GatewayError("tool_choice.allowed_tools.tools must name at least one function.")
    return tuple(tool for tool in tools if tool.name in names)


def _answer_schema(response_format: Any) -> JsonSchema | None:
    match response_format:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"type": "object"}
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return fields.schema(schema, "response_format.json_schema.schema")
    raise GatewayError("response_format must be of type 'text', 'json_object', or 'json_schema' with a schema.")


_FINISH: Mapping[FinishReason, str] = {
    "stop": "stop",
    "calls": "tool_calls",
    "length": "length",
    "refusal": "content_filter",
}


class OpenAIProtocol:
    """OpenAI's chat completions API."""

    keep_alive = b": waiting\n\n"

    def read(self, body: Mapping[str, Any]) -> ParsedRequest:
        return read(body)

    def reply(self, reply: Reply, meta: ResponseMeta) -> bytes:
        message: dict[str, Any] = {"role": "assistant", "content": reply.text or (None if reply.calls else "")}
        if thinking := _thinking(reply):
            message["reasoning_content"] = thinking
        if reply.calls:
            message["tool_calls"] = [_call(call) for call in reply.calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(reply)}
        return dumps(_head(meta, "chat.completion") | {"choices": [choice], "usage": _usage(reply.usage)})

    def events(self, reply: Reply, meta: ResponseMeta) -> bytes:
        head = _head(meta, "chat.completion.chunk")
        chunks = [
            head | {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]}
            for delta, finish in _deltas(reply)
        ]
        if meta.counts:
            chunks.append(head | {"choices": [], "usage": _usage(reply.usage)})
        return b"".join(map(_event, chunks)) + b"data: [DONE]\n\n"

    def error(self, error: GatewayError) -> bytes:
        return dumps({"error": error_data(error)})

    def error_event(self, error: GatewayError, meta: ResponseMeta) -> bytes:
        data = error_data(error)
        if error.code:  # OpenCode detects a context overflow in a stream only by a message of this form
            data["message"] = dumps({"type": "error", "error": data}).decode()
        return _event({"error": data}) + b"data: [DONE]\n\n"


def _head(meta: ResponseMeta, shape: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{meta.id}",
        "object": shape,
        "created": meta.created,
        "model": meta.model,
    }


def _deltas(reply: Reply) -> Iterator[tuple[dict[str, Any], str | None]]:
    yield {"role": "assistant", "content": ""}, None
    if thinking := _thinking(reply):
        yield {"reasoning_content": thinking}, None
    if reply.text:
        yield {"content": reply.text}, None
    for index, call in enumerate(reply.calls):
        yield {"tool_calls": [{"index": index, **_call(call)}]}, None
    yield {}, _finish(reply)


def _thinking(reply: Reply) -> str:
    return "".join(thought.text for thought in reply.thoughts)


def _call(call: ToolCall) -> dict[str, Any]:
    """Encodes a call. Programs parse the arguments as JSON, so a call without arguments gets an empty object."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments or "{}"}}


def _finish(reply: Reply) -> str:
    return "tool_calls" if reply.calls and reply.finish == "stop" else _FINISH[reply.finish]


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


def error_data(error: GatewayError) -> dict[str, Any]:
    return {"message": str(error), "type": _kind(error.status), "param": None, "code": error.code}


def _kind(status: int) -> str:
    if status >= 500:
        return "server_error"
    return "rate_limit_error" if status == 429 else "invalid_request_error"


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + dumps(data) + b"\n\n"
