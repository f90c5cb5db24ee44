"""Validation of request fields that the APIs share."""

from collections.abc import Mapping
from typing import Any, Literal

import orjson

from ...core.messages import PREAMBLE, ToolSpec
from ...core.requests import Sampling
from ...core.validation import is_number
from .gateway_error import GatewayError

Tools = tuple[ToolSpec, ...]
Choice = Literal["auto", "none", "required"]

_MAX_NUMBER = 2**63
_TEXTS = ("text", "input_text", "output_text", "reasoning_text", "summary_text")
"""Part types that are text."""


def object_list(value: Any, where: str) -> list[Mapping[str, Any]]:
    """Validates a list of objects; None counts as empty."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise GatewayError(f"{where} must be a list.")
    for position, item in enumerate(value):
        if not isinstance(item, dict):
            raise GatewayError(f"{where}[{position}] must be an object.")
    return value


def text(value: Any, where: str) -> str:
    """Validates a string; None counts as empty."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise GatewayError(f"{where} must be a string.")
    return value


def name_in(value: Mapping[str, Any], where: str) -> str:
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise GatewayError(f"{where}.name must be a non-empty string.")
    return name


def known_tool(name: str, tools: Tools) -> str:
    if any(tool.name == name for tool in tools):
        return name
    raise GatewayError(f"tool_choice names {name[:80]!r}, which is not among the tools of this request.")


def text_parts(content: Any, where: str, *, describe_others: bool = False) -> list[str]:
    """The text parts of a content, which is a string or a list of parts. For other parts, raises GatewayError or, with
    `describe_others`, inserts a note: an image returned by a tool would otherwise fail every later request of the
    program."""
    if content is None or isinstance(content, str):
        return [content] if content else []
    if not isinstance(content, list):
        raise GatewayError(f"{where} must be a string or a list of parts.")
    found = [text_in(part, f"{where}[{position}]", describe_others) for position, part in enumerate(content)]
    return list(filter(None, found))


def text_in(part: Any, where: str, describe_others: bool = False) -> str:
    """The text of one part."""
    match part:
        case str():
            return part
        case {"type": str(kind), "text": str(found)} if kind in _TEXTS:
            return found
        case {"type": "refusal", "refusal": str(found)}:
            return found
        case {"type": str(kind)} if describe_others:
            return f"[{kind}: left out, the model reads texts only]"
        case {"type": str(kind)}:
            raise GatewayError(f"{where} is of type {kind!r}: the model of this run reads only text. Leave it out.")
    raise GatewayError(f"{where} must be an object with a type.")


def joined(content: Any, where: str, *, describe_others: bool = False) -> str:
    return "\n".join(text_parts(content, where, describe_others=describe_others))


def system_prompt(parts: list[str]) -> str:
    """Joins the parts, without headers that some programs prepend and that differ in every session."""
    return "\n\n".join(filter(None, (PREAMBLE.sub("", part) for part in parts)))


def inline_system_message(prompt: str) -> str:
    """Formats a system message from mid-conversation as user text. In the system prompt, it would change the prefix."""
    return f"<system>\n{prompt}\n</system>"


def schema(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise GatewayError(f"{where} must be a JSON schema.")
    try:
        orjson.dumps(value)
    except TypeError as error:
        raise GatewayError(f"{where} is nested too deeply.") from error
    return value


def sampling(body: Mapping[str, Any], max_tokens: str, stop: str) -> Sampling:
    """`max_tokens` and `stop` are the names of these fields in the API."""
    return Sampling(
        temperature=_number(body, "temperature"),
        top_p=_number(body, "top_p"),
        seed=_integer(body, "seed"),
        max_tokens=_integer(body, max_tokens, at_least=1),
        stop=_stop(body.get(stop), stop),
    )


def _number(body: Mapping[str, Any], name: str) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if not is_number(value) or abs(value) > _MAX_NUMBER:
        raise GatewayError(f"{name} must be a number of at most {_MAX_NUMBER}.")
    return value


def _integer(body: Mapping[str, Any], name: str, at_least: int | None = None) -> int | None:
    value = _number(body, name)
    if value is None:
        return None
    if value != int(value) or (at_least is not None and value < at_least):
        raise GatewayError(f"{name} must be an integer" + ("." if at_least is None else f" >= {at_least}."))
    return int(value)


def _stop(value: Any, where: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,) if value else ()
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise GatewayError(f"{where} must be a list of strings.")
    return tuple(filter(None, value))
