"""Requests in Anthropic's words (messages)."""

from collections.abc import Mapping
from typing import Any

from ..core.json import dumps
from ..core.messages import Assistant, Thought, ToolCall
from ..core.prompt import ToolSpec
from ..core.runtime import Asked
from ..core.schema import JsonSchema
from . import fields
from .refusal import Refused
from .thread import Outcome, Thread
from .words import Wanted

Block = Mapping[str, Any]


def read(body: Mapping[str, Any]) -> Wanted:
    """Raises Refused, RecursionError. Fields that are not known are passed over."""
    told = fields.listed(body.get("messages"), "messages")
    if not told:
        raise Refused("messages must have at least one.")
    thread = Thread()
    for number, message in enumerate(told):
        _add(thread, message, f"messages[{number}]")
    tools = tuple(
        _tool(tool, f"tools[{number}]") for number, tool in enumerate(fields.listed(body.get("tools"), "tools"))
    )
    choice, named = _choice(body.get("tool_choice"), tools)
    asked = Asked(
        messages=thread.messages,
        system=fields.system_prompt(fields.texts(body.get("system"), "system")),
        tools=tools,
        choice=choice,
        named=named,
        one_call=_takes_one_call(body.get("tool_choice")),
        sampling=fields.sampling(body, "max_tokens", "stop_sequences"),
        answer_schema=_answer_schema(body),
    )
    return Wanted(asked, fields.text(body.get("model"), "model"), body.get("stream") is True)


def _add(thread: Thread, message: Block, where: str) -> None:
    role, content, at = message.get("role"), message.get("content"), f"{where}.content"
    if role == "assistant":
        thread.assistant(_assistant(content, at))
    elif role == "system":
        thread.user(fields.said_midway(fields.joined(content, at)))
    elif role != "user":
        raise Refused(f"{where}.role must be user, assistant or system; got {str(role)[:40]!r}.")
    elif isinstance(content, list):
        _user(thread, content, at)
    else:
        thread.user(fields.joined(content, at))


def _user(thread: Thread, content: list[Any], where: str) -> None:
    """The results of calls come first, since they answer the message before; what is said beside them comes next."""
    outcomes, said = list[Outcome](), list[str]()
    for position, block in enumerate(content):
        at = f"{where}[{position}]"
        if isinstance(block, dict) and block.get("type") == "tool_result":
            given = fields.joined(block.get("content"), f"{at}.content", names_others=True)
            is_error = block.get("is_error") is True
            outcomes.append(Outcome(fields.text(block.get("tool_use_id"), f"{at}.tool_use_id"), given, is_error))
        else:
            said.append(fields.text_in(block, at))
    thread.results(outcomes)
    if said or not outcomes:
        thread.user("\n".join(filter(None, said)))


def _assistant(content: Any, where: str) -> Assistant:
    if not isinstance(content, list):
        return Assistant(fields.joined(content, where))
    said, calls, thoughts = list[str](), list[ToolCall](), list[Thought]()
    for position, block in enumerate(content):
        at = f"{where}[{position}]"
        match block:
            case {"type": "tool_use"}:
                calls.append(_call(block, at))
            case {"type": "thinking"}:
                thoughts.append(
                    Thought(fields.text(block.get("thinking"), at), fields.text(block.get("signature"), at))
                )
            case {"type": "redacted_thinking"}:
                thoughts.append(Thought(redacted=fields.text(block.get("data"), at)))
            case _:
                said.append(fields.text_in(block, at))
    return Assistant("\n".join(filter(None, said)), tuple(calls), tuple(thoughts))


def _call(block: Block, where: str) -> ToolCall:
    given = block.get("input")
    arguments = "{}" if given is None else dumps(given).decode()
    return ToolCall(fields.text(block.get("id"), f"{where}.id"), fields.name_in(block, where), arguments)


def _tool(tool: Block, where: str) -> ToolSpec:
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise Refused(f"{where} is of type {str(kind)[:40]!r}, which Anthropic's own servers run. Leave it out.")
    described = fields.text(tool.get("description"), f"{where}.description")
    return ToolSpec(
        fields.name_in(tool, where), described, fields.schema(tool.get("input_schema"), f"{where}.input_schema")
    )


def _choice(choice: Any, tools: fields.Tools) -> tuple[fields.Choice, str]:
    """Whether tools are to be called, and which."""
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
    raise Refused("tool_choice must be of type auto, any, tool (with a name) or none.")


def _takes_one_call(choice: Any) -> bool:
    return isinstance(choice, dict) and choice.get("disable_parallel_tool_use") is True


def _answer_schema(body: Mapping[str, Any]) -> JsonSchema | None:
    config = body.get("output_config")
    wanted = config.get("format") if isinstance(config, dict) else None
    match wanted or body.get("output_format"):
        case None:
            return None
        case {"type": "json_schema", "schema": dict(asked)}:
            return fields.schema(asked, "output_config.format.schema")
    raise Refused("output_config.format must be of type json_schema, with a schema.")
