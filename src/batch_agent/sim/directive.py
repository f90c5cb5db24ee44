"""Orders inside a prompt: `[[sim: {...}]]` in a user message decides the reply, so that a test can script an agent."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .answer import Call, SimAnswer
from .config import FaultRates
from .faults import FaultOrder, parse
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
            orders = read(text)
            return orders[answers] if answers < len(orders) else None
    return None


def read(text: str) -> list[Mapping[str, Any]]:
    """The orders in a text. Raises DirectiveError."""
    body = text.partition(MARK)[2].lstrip()
    try:
        value = _decode(body)
    except ValueError as error:
        raise DirectiveError(f"a {MARK} ...]] directive needs JSON after the colon: {error}") from error
    orders = value if isinstance(value, list) else [value]
    for order in orders:
        if not isinstance(order, dict) or not order.keys() <= _KEYS:
            raise DirectiveError(
                f"a {MARK} ...]] directive is an object with keys out of {sorted(_KEYS)}, got {order!r}"
            )
    return orders


def answer_of(order: Mapping[str, Any]) -> SimAnswer | None:
    """The answer an order spells out; None where it leaves that to the script."""
    if "calls" in order:
        return SimAnswer(text=str(order.get("text", "")), calls=tuple(_call(call) for call in order["calls"]))
    if "json" in order:
        return SimAnswer(text=json.dumps(order["json"], ensure_ascii=False))
    if "text" in order:
        return SimAnswer(text=str(order["text"]))
    return None


def fault_of(order: Mapping[str, Any], rates: FaultRates) -> FaultOrder | None:
    """The fault an order asks for. Raises DirectiveError for a fault that does not exist."""
    if "fault" not in order:
        return None
    try:
        fault = parse(str(order["fault"]), rates, order.get("retry_after_s"), order.get("stall_s"))
    except ValueError as error:
        raise DirectiveError(str(error)) from error
    return FaultOrder(fault, order.get("times"))


def _decode(body: str) -> Any:
    try:
        return _DECODER.raw_decode(body)[0]
    except ValueError:
        if '\\"' not in body:
            raise
    # The directive stood in a value that went into the prompt as a JSON string.
    return _DECODER.raw_decode(body.replace('\\"', '"').replace("\\\\", "\\"))[0]


def _call(call: Any) -> Call:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise DirectiveError(f"a call in a directive needs a name, got {call!r}")
    arguments = call.get("arguments", {})
    return Call(call["name"], arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False))
