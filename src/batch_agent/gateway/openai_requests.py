"""Requests in OpenAI's words (chat completions)."""

from collections.abc import Mapping
from itertools import groupby, takewhile
from typing import Any

from ..core.json import dumps
from ..core.messages import Assistant, Message, Thought, ToolCall
from ..core.prompt import ToolSpec
from ..core.runtime import Asked
from ..core.schema import JsonSchema
from . import fields
from .refusal import Refused
from .thread import Outcome, Thread
from .words import Wanted

_NO_PARAMETERS: JsonSchema = {"type": "object", "properties": {}}
_SYSTEM = ("system", "developer")


def read(body: Mapping[str, Any]) -> Wanted:
    """Raises Refused, RecursionError. Fields that are not known are passed over."""
    if body.get("n") not in (None, 1):
        raise Refused("n must be 1: one answer for a request.")
    if body.get("functions"):
        raise Refused("functions is not supported; use tools.")
    system, messages = _conversation(fields.listed(body.get("messages"), "messages"))
    offered = tuple(
        _tool(tool, f"tools[{number}]") for number, tool in enumerate(fields.listed(body.get("tools"), "tools"))
    )
    tools, choice, named = _choice(body.get("tool_choice"), offered)
    limit = "max_tokens" if body.get("max_completion_tokens") is None else "max_completion_tokens"
    asked = Asked(
        messages=messages,
        system=system,
        tools=tools,
        choice=choice,
        named=named,
        one_call=body.get("parallel_tool_calls") is False,
        sampling=fields.sampling(body, limit, "stop"),
        answer_schema=_answer_schema(body.get("response_format")),
    )
    options = body.get("stream_options")
    counts = isinstance(options, dict) and options.get("include_usage") is True
    return Wanted(asked, fields.text(body.get("model"), "model"), body.get("stream") is True, counts)


def _conversation(told: list[Mapping[str, Any]]) -> tuple[str, tuple[Message, ...]]:
    placed = [(f"messages[{number}]", message) for number, message in enumerate(told)]
    opening = list(takewhile(lambda each: each[1].get("role") in _SYSTEM, placed))
    system = [part for where, message in opening for part in fields.texts(message.get("content"), f"{where}.content")]
    thread = Thread()
    for are_results, row in groupby(placed[len(opening) :], lambda each: each[1].get("role") == "tool"):
        if are_results:
            thread.results([_outcome(message, where) for where, message in row])
        else:
            for where, message in row:
                _add(thread, message, where)
    if not thread.messages:
        raise Refused("messages must have one that is not a system message.")
    return fields.system_prompt(system), thread.messages


def _add(thread: Thread, message: Mapping[str, Any], where: str) -> None:
    role, content, at = message.get("role"), message.get("content"), f"{where}.content"
    if role == "assistant":
        thread.assistant(_assistant(message, where))
    elif role == "user":
        thread.user(fields.joined(content, at))
    elif role in _SYSTEM:
        thread.user(fields.said_midway(fields.joined(content, at)))
    else:
        raise Refused(f"{where}.role must be system, developer, user, assistant or tool; got {str(role)[:40]!r}.")


def _outcome(message: Mapping[str, Any], where: str) -> Outcome:
    content = fields.joined(message.get("content"), f"{where}.content", names_others=True)
    return Outcome(fields.text(message.get("tool_call_id"), f"{where}.tool_call_id"), content)


def _assistant(message: Mapping[str, Any], where: str) -> Assistant:
    thinking = message.get("reasoning_content") or message.get("reasoning")
    calls = fields.listed(message.get("tool_calls"), f"{where}.tool_calls")
    return Assistant(
        fields.joined(message.get("content"), f"{where}.content")
        or fields.text(message.get("refusal"), f"{where}.refusal"),
        tuple(_call(call, f"{where}.tool_calls[{number}]") for number, call in enumerate(calls)),
        (Thought(thinking),) if isinstance(thinking, str) and thinking else (),
    )


def _call(call: Mapping[str, Any], where: str) -> ToolCall:
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
        raise Refused(f"{where} is of type {str(kind)[:40]!r}: only functions are supported.")
    if not isinstance(function, dict):
        raise Refused(f"{where}.function must be an object.")
    return function


def _choice(choice: Any, tools: fields.Tools) -> tuple[fields.Tools, fields.Choice, str]:
    """The tools that are offered, whether they are to be called, and which."""
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
    raise Refused("tool_choice must be auto, none, required or name a function.")


def _allowed(allowed: list[Any], tools: fields.Tools) -> fields.Tools:
    """Only those are offered. The prompt does not begin then as it did with all of them."""
    entries = [(f"tool_choice.allowed_tools.tools[{number}]", entry) for number, entry in enumerate(allowed)]
    functions = [_function(entry, where) for where, entry in entries if isinstance(entry, dict)]
    names = {
        fields.known_tool(fields.name_in(function, "tool_choice.allowed_tools.tools"), tools) for function in functions
    }
    if not names:
        raise Refused("tool_choice.allowed_tools.tools must name at least one function.")
    return tuple(tool for tool in tools if tool.name in names)


def _answer_schema(wanted: Any) -> JsonSchema | None:
    match wanted:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"type": "object"}
        case {"type": "json_schema", "json_schema": {"schema": dict(asked)}}:
            return fields.schema(asked, "response_format.json_schema.schema")
    raise Refused("response_format must be of type text, json_object, or json_schema with a schema.")
