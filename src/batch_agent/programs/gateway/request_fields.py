"""What stands in the fields of a request, whatever the protocol."""

from collections.abc import Mapping
from typing import Any, Literal

import orjson

from ...core.messages import PREAMBLE, ToolSpec
from ...core.requests import Sampling
from ...core.validation import is_number
from .errors import GatewayError

Tools = tuple[ToolSpec, ...]
Choice = Literal["auto", "none", "required"]

_LARGEST = 2**63


def listed(value: Any, where: str) -> list[Mapping[str, Any]]:
    """A list of objects; nothing counts as an empty one."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise GatewayError(f"{where} must be a list.")
    for position, item in enumerate(value):
        if not isinstance(item, dict):
            raise GatewayError(f"{where}[{position}] must be an object.")
    return value


def text(value: Any, where: str) -> str:
    """A text; nothing counts as an empty one."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise GatewayError(f"{where} must be a text.")
    return value


def name_in(value: Mapping[str, Any], where: str) -> str:
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise GatewayError(f"{where}.name must be a text that is not empty.")
    return name


def known_tool(name: str, tools: Tools) -> str:
    if any(tool.name == name for tool in tools):
        return name
    raise GatewayError(f"tool_choice names {name[:80]!r}, which is none of the tools of this request.")


def texts(content: Any, where: str, *, names_others: bool = False) -> list[str]:
    """The texts of a content, which is one text or a list of parts. What else there may be among them is refused, or
    named in its place: a picture that a tool gave would else make every later request of the program fail."""
    if content is None or isinstance(content, str):
        return [content] if content else []
    if not isinstance(content, list):
        raise GatewayError(f"{where} must be a text or a list of parts.")
    found = [text_in(part, f"{where}[{position}]", names_others) for position, part in enumerate(content)]
    return list(filter(None, found))


def text_in(part: Any, where: str, names_others: bool = False) -> str:
    """The text of a part of a content."""
    match part:
        case str():
            return part
        case {"type": "text" | "input_text", "text": str(said)} | {"type": "refusal", "refusal": str(said)}:
            return said
        case {"type": str(kind)} if names_others:
            return f"[{kind}: left out, the model reads texts only]"
        case {"type": str(kind)}:
            raise GatewayError(f"{where} is of type {kind!r}: the model of this run reads texts only. Leave it out.")
    raise GatewayError(f"{where} must be an object with a type.")


def joined(content: Any, where: str, *, names_others: bool = False) -> str:
    return "\n".join(texts(content, where, names_others=names_others))


def system_prompt(parts: list[str]) -> str:
    """Without the headers that some programs put before it, other in every session."""
    return "\n\n".join(filter(None, (PREAMBLE.sub("", part) for part in parts)))


def said_midway(prompt: str) -> str:
    """A system message that comes after others. Put to the system prompt it would move everything that is after it."""
    return f"<system>\n{prompt}\n</system>"


def schema(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise GatewayError(f"{where} must be a JSON schema.")
    try:
        orjson.dumps(value)
    except TypeError as error:
        raise GatewayError(f"{where} is nested too deep.") from error
    return value


def sampling(body: Mapping[str, Any], max_tokens: str, stop: str) -> Sampling:
    """`max_tokens`, `stop`: how the protocol calls them."""
    return Sampling(
        temperature=_number(body, "temperature"),
        top_p=_number(body, "top_p"),
        seed=_whole(body, "seed"),
        max_tokens=_whole(body, max_tokens, at_least=1),
        stop=_stop(body.get(stop), stop),
    )


def _number(body: Mapping[str, Any], name: str) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if not is_number(value) or abs(value) > _LARGEST:
        raise GatewayError(f"{name} must be a number, and not so large a one.")
    return value


def _whole(body: Mapping[str, Any], name: str, at_least: int | None = None) -> int | None:
    value = _number(body, name)
    if value is None:
        return None
    if value != int(value) or (at_least is not None and value < at_least):
        raise GatewayError(
            f"{name} must be a whole number" + ("." if at_least is None else f" of at least {at_least}.")
        )
    return int(value)


def _stop(value: Any, where: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,) if value else ()
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise GatewayError(f"{where} must be a list of texts.")
    return tuple(filter(None, value))
