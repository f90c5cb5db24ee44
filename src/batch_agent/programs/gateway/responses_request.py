"""Requests of OpenAI's responses API."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, takewhile
from typing import Any, Literal

from ...core.json import dumps
from ...core.messages import Assistant, Message, Thought, ToolCall
from ...core.program_runtime import CompletionRequest
from ...core.schema import JsonSchema
from . import request_fields as fields
from .api_protocol import ParsedRequest
from .conversation_builder import ConversationBuilder, ToolOutput
from .gateway_error import GatewayError
from .responses_tools import OfferedTools, custom_call, function_name, read_tools, shell_call

Located = tuple[str, Mapping[str, Any]]
Side = Literal["model", "outputs", "others"]

_SYSTEM = ("system", "developer")
_CALLS = ("function_call", "custom_tool_call", "local_shell_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")
_STORED = {
    "previous_response_id": "Send the whole conversation in input.",
    "conversation": "Send the whole conversation in input.",
    "prompt": "Send its text in instructions or input.",
    "background": "Wait for the response, or stream it.",
}
"""Fields that need a server with storage, and the remedy for each."""


def read(body: Mapping[str, Any]) -> ParsedRequest:
    """Raises GatewayError and RecursionError. Unknown fields are ignored."""
    for name, instead in _STORED.items():
        if body.get(name):
            raise GatewayError(f"{name} is not supported: this gateway stores nothing. {instead}")
    offered = read_tools(body)
    system, messages = _conversation(body)
    tools, choice, named = _choice(body.get("tool_choice"), offered)
    request = CompletionRequest(
        messages=messages,
        system=system,
        tools=tools,
        tool_choice=choice,
        tool_name=named,
        single_call=body.get("parallel_tool_calls") is False,
        sampling=fields.sampling(body, "max_output_tokens", "stop"),
        answer_schema=_answer_schema(body.get("text")),
    )
    return ParsedRequest(request, fields.text(body.get("model"), "model"), body.get("stream") is True, body=body)


def _conversation(body: Mapping[str, Any]) -> tuple[str, tuple[Message, ...]]:
    entries = body.get("input")
    if isinstance(entries, str):
        entries = [{"role": "user", "content": entries}]
    items = enumerate(fields.object_list(entries, "input"))
    located = [(f"input[{number}]", item) for number, item in items if item.get("type") != "additional_tools"]
    opening = list(takewhile(lambda each: _role(each[1]) in _SYSTEM, located))
    system = [fields.text(body.get("instructions"), "instructions")]
    for where, item in opening:
        system += fields.text_parts(item.get("content"), f"{where}.content")
    builder = ConversationBuilder()
    for side, run in groupby(located[len(opening) :], lambda each: _side(each[1])):
        if side == "model":
            for message in _assistant_messages(run):
                builder.assistant(message)
        elif side == "outputs":
            builder.results([_tool_output(item, where) for where, item in run])
        else:
            for where, item in run:
                _add(builder, item, where)
    if not builder.messages:
        raise GatewayError("input must contain at least one item that is not a system message.")
    return fields.system_prompt(system), builder.messages


def _role(item: Mapping[str, Any]) -> Any:
    """The role of a message. The type of a message may be omitted."""
    return item.get("role") if item.get("type") in (None, "message") else None


def _side(item: Mapping[str, Any]) -> Side:
    if item.get("type") in ("reasoning", *_CALLS) or _role(item) == "assistant":
        return "model"
    return "outputs" if item.get("type") in _OUTPUTS else "others"


def _add(builder: ConversationBuilder, item: Mapping[str, Any], where: str) -> None:
    role, kind = _role(item), item.get("type")
    if kind not in (None, "message"):
        raise GatewayError(
            f"{where} is of type {str(kind)[:40]!r}, which is not supported: input may have messages, reasoning, "
            "calls of functions, custom tools and the local shell, and their outputs. Leave it out."
        )
    text = fields.joined(item.get("content"), f"{where}.content")
    if role == "user":
        builder.user(text)
    elif role in _SYSTEM:
        builder.user(fields.inline_system_message(text))
    else:
        raise GatewayError(f"{where}.role must be system, developer, user or assistant; got {str(role)[:40]!r}.")


def _assistant_messages(run: Iterable[Located]) -> Iterator[Assistant]:
    """Builds the model's replies from their items. Each reply has reasoning, then text, then calls."""
    thoughts, texts, calls = list[Thought](), list[str](), list[ToolCall]()
    for where, item in run:
        is_call = item.get("type") in _CALLS
        if not is_call and (texts or calls):
            yield Assistant("\n".join(filter(None, texts)), tuple(calls), tuple(thoughts))
            thoughts, texts, calls = [], [], []
        if is_call:
            calls.append(_call(item, where))
        elif item.get("type") == "reasoning":
            thoughts.append(_thought(item, where))
        else:
            texts.append(fields.joined(item.get("content"), f"{where}.content"))
    yield Assistant("\n".join(filter(None, texts)), tuple(calls), tuple(thoughts))


def _thought(item: Mapping[str, Any], where: str) -> Thought:
    """Builds a thought. Encrypted content is the provider's signature of the text, or the thought itself if there is no
    text."""
    text = fields.joined(item.get("content"), f"{where}.content")
    text = text or fields.joined(item.get("summary"), f"{where}.summary")
    encrypted = fields.text(item.get("encrypted_content"), f"{where}.encrypted_content")
    return Thought(text, encrypted) if text else Thought(redacted=encrypted)


def _call(item: Mapping[str, Any], where: str) -> ToolCall:
    call_id = fields.text(item.get("call_id") or item.get("id"), f"{where}.call_id")
    if item.get("type") == "local_shell_call":
        return shell_call(call_id, item.get("action"))
    name = function_name(fields.name_in(item, where), item.get("namespace"))
    if item.get("type") == "custom_tool_call":
        return custom_call(call_id, name, fields.text(item.get("input"), f"{where}.input"))
    arguments = item.get("arguments")
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else dumps(arguments).decode()
    return ToolCall(call_id, name, arguments)


def _tool_output(item: Mapping[str, Any], where: str) -> ToolOutput:
    call_id = fields.text(item.get("call_id") or item.get("id"), f"{where}.call_id")
    return ToolOutput(call_id, fields.joined(item.get("output"), f"{where}.output", describe_others=True))


def _choice(choice: Any, offered: OfferedTools) -> tuple[fields.Tools, fields.Choice, str]:
    """The offered tools, whether a tool must be called, and which one."""
    tools = offered.specs
    match choice:
        case {"type": str(kind)} if kind in offered.left_out:
            raise GatewayError(f"tool_choice is of type {kind[:40]!r}, a tool that only OpenAI's servers run.")
        case _ if not tools:
            return tools, "auto", ""
        case None | "auto":
            return tools, "auto", ""
        case "none" | "required":
            return tools, choice, ""
        case {"type": "function" | "custom" as kind, "name": str(name)}:
            return tools, "required", offered.model_name(kind, name, choice.get("namespace"))
        case {"type": "local_shell"}:
            return tools, "required", offered.model_name("local_shell", "local_shell")
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": list(allowed)}:
            return _allowed(allowed, offered), mode, ""
    raise GatewayError("tool_choice must be 'auto', 'none', 'required', or name a function or a custom tool.")


def _allowed(allowed: list[Any], offered: OfferedTools) -> fields.Tools:
    """Restricts the request to these tools, which changes the prompt's prefix."""
    names = set[str]()
    for entry in fields.object_list(allowed, "tool_choice.tools"):
        kind = str(entry.get("type"))
        if kind not in offered.left_out:
            name = "local_shell" if kind == "local_shell" else fields.name_in(entry, "tool_choice.tools")
            names.add(offered.model_name(kind, name, entry.get("namespace")))
    if not names:
        raise GatewayError("tool_choice.tools must name at least one tool that the program runs.")
    return tuple(spec for spec in offered.specs if spec.name in names)


def _answer_schema(text: Any) -> JsonSchema | None:
    match text.get("format") if isinstance(text, dict) else text:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"type": "object"}
        case {"type": "json_schema", "schema": dict(schema)}:
            return fields.schema(schema, "text.format.schema")
    raise GatewayError("text.format must be of type 'text', 'json_object', or 'json_schema' with a schema.")
