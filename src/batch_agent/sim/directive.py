"""Directives in prompts: `[[sim: {...}]]` in a user message determines the reply, so that a test can script an
agent."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .answer import Call, SimAnswer
from .faults import FaultOrder, parse
from .sim_config import FaultRates
from .tokens import text_of

MARK = "[[sim:"
_KEYS = {"text", "json", "calls", "tokens", "fault", "times", "retry_after_s", "stall_s"}
_DECODER = json.JSONDecoder()


class DirectiveError(ValueError):
    """A directive that cannot be read: the request is answered with 400 and this message."""


def find_directive(messages: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The directive for this turn: that of the newest user message that has one.

    One object is for the first answer after that message; a list has an object for each answer in turn. None: there is
    none, or all were used.
    """
    answers = 0
    for message in reversed(messages):
        if message.get("role") == "assistant":
            answers += 1
        elif message.get("role") == "user" and MARK in (text := text_of(message.get("content"))):
            directives = read(text)
            return directives[answers] if answers < len(directives) else None
    return None


def read(text: str) -> list[Mapping[str, Any]]:
    """The directives in a text. Raises DirectiveError."""
    body = text.partition(MARK)[2].lstrip()
    try:
        value = _decode(body)
    except ValueError as error:
        raise DirectiveError(f"a {MARK} ...]] directive needs JSON after the colon: {error}") from error
    directives = value if isinstance(value, list) else [value]
    for directive in directives:
        if not isinstance(directive, dict) or not directive.keys() <= _KEYS:
            raise DirectiveError(
                f"a {MARK} ...]] directive must be an object with keys from {sorted(_KEYS)}, got {directive!r}"
            )
    return directives


def answer_of(directive: Mapping[str, Any]) -> SimAnswer | None:
    """The answer that a directive contains; None if it leaves the answer to the script."""
    if "calls" in directive:
        return SimAnswer(text=str(directive.get("text", "")), calls=tuple(_call(call) for call in directive["calls"]))
    if "json" in directive:
        return SimAnswer(text=json.dumps(directive["json"], ensure_ascii=False))
    if "text" in directive:
        return SimAnswer(text=str(directive["text"]))
    return None


def fault_of(directive: Mapping[str, Any], rates: FaultRates) -> FaultOrder | None:
    """The fault that a directive requests. Raises DirectiveError for a fault that does not exist."""
    if "fault" not in directive:
        return None
    try:
        fault = parse(str(directive["fault"]), rates, directive.get("retry_after_s"), directive.get("stall_s"))
    except ValueError as error:
        raise DirectiveError(str(error)) from error
    return FaultOrder(fault, directive.get("times"))


def _decode(body: str) -> Any:
    try:
        return _DECODER.raw_decode(body)[0]
    except ValueError:
        if '\\"' not in body:
            raise
    # The directive was part of a value that the prompt contains as a JSON string.
    return _DECODER.raw_decode(body.replace('\\"', '"').replace("\\\\", "\\"))[0]


def _call(call: Any) -> Call:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise DirectiveError(f"a call in a directive needs a name, got {call!r}")
    arguments = call.get("arguments", {})
    return Call(call["name"], arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False))
