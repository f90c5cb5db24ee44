"""What a reply is: calls that the model wants to make first, or its answer."""

from dataclasses import replace
from typing import Any

import orjson

from ..core.agent_config import AgentConfig, InvalidOutput
from ..core.fast_dataclass import dataclass
from ..core.json import dumps_ascii
from ..core.messages import ToolCall
from ..core.requests import Reply
from .action_mode import FinalAction, read_action
from .answer_extraction import find_answer, fit, without_thoughts


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    value: Any


def read_reply(rules: AgentConfig, reply: Reply, turn: int) -> FinalAnswer | tuple[ToolCall, ...]:
    """Raises InvalidOutput when it is neither."""
    is_whole = reply.finish != "length"
    if rules.tool_mode == "action":
        action = read_action(reply.text, f"call_{turn}", is_whole=is_whole)
        return (action,) if isinstance(action, ToolCall) else FinalAnswer(_final(rules, action))
    if reply.calls:
        return _named_apart(reply.calls, turn, is_whole)
    return FinalAnswer(_answer(rules, reply.text, is_whole))


def echo(call: ToolCall) -> ToolCall:
    """The call as the history shows it. Servers parse the arguments in it, so a malformed text is shown as data."""
    try:
        if isinstance(orjson.loads(call.arguments), dict):
            return call
    except orjson.JSONDecodeError:
        pass
    return replace(call, arguments=orjson.dumps({"malformed": call.arguments}).decode())


def _named_apart(calls: tuple[ToolCall, ...], turn: int, is_whole: bool) -> tuple[ToolCall, ...]:
    """The calls with an id each, whatever the server gave. No arguments mean none only if nothing was cut off."""
    ids = [call.id for call in calls]
    if len(ids) == 1 and ids[0] and calls[0].arguments.strip():
        return calls
    if not all(ids) or len(set(ids)) < len(ids):
        ids = [f"call_{turn}_{number}" for number in range(len(calls))]
    empty = "{}" if is_whole else ""
    return tuple(
        replace(call, id=own, arguments=call.arguments if call.arguments.strip() else empty)
        for call, own in zip(calls, ids, strict=True)
    )


def _final(rules: AgentConfig, action: FinalAction) -> Any:
    if rules.output is not None:
        return fit(action.value, rules.output)
    said = action.value if isinstance(action.value, str) else dumps_ascii(action.value)
    if not said.strip():
        raise InvalidOutput("it is empty")
    return said


def _answer(rules: AgentConfig, text: str, is_whole: bool) -> Any:
    if rules.output is not None:
        return find_answer(text, rules.output, is_whole=is_whole)
    said = without_thoughts(text, is_whole=is_whole)
    if not said:
        raise InvalidOutput("it is empty")
    if not is_whole and rules.sampling.max_tokens is None:
        raise InvalidOutput("it was cut off before its end")
    return said
