"""Parser of replies: a reply holds tool calls, or the final answer."""

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
    """Validated answer of an agent."""

    value: Any


def read_reply(
    config: AgentConfig, reply: Reply, turn: int, agent_input: Any = None
) -> FinalAnswer | tuple[ToolCall, ...]:
    """Final answer or tool calls of a reply. `agent_input`: for validators. Raises InvalidOutput if it has neither."""
    is_whole = reply.finish != "length"
    if config.tool_mode == "action":
        action = read_action(reply.text, f"call_{turn}", is_whole=is_whole)
        return (action,) if isinstance(action, ToolCall) else FinalAnswer(_final(config, action, agent_input))
    if reply.calls:
        return _with_unique_ids(reply.calls, turn, is_whole)
    return FinalAnswer(_answer(config, reply.text, is_whole, agent_input))


def echo(call: ToolCall) -> ToolCall:
    """The call as it is sent back in the history. Servers parse its arguments, so malformed ones are wrapped in valid
    JSON."""
    try:
        if isinstance(orjson.loads(call.arguments), dict):
            return call
    except orjson.JSONDecodeError:
        pass
    return replace(call, arguments=orjson.dumps({"malformed": call.arguments}).decode())


def _with_unique_ids(calls: tuple[ToolCall, ...], turn: int, is_whole: bool) -> tuple[ToolCall, ...]:
    """The calls with unique ids, also if the server sent none or duplicates. Empty arguments become `{}`, unless the
    reply was cut off."""
    ids = [call.id for call in calls]
    if len(ids) == 1 and ids[0] and calls[0].arguments.strip():
        return calls
    if not all(ids) or len(set(ids)) < len(ids):
        ids = [f"call_{turn}_{number}" for number in range(len(calls))]
    empty = "{}" if is_whole else ""
    return tuple(
        replace(call, id=call_id, arguments=call.arguments if call.arguments.strip() else empty)
        for call, call_id in zip(calls, ids, strict=True)
    )


def _final(config: AgentConfig, action: FinalAction, agent_input: Any) -> Any:
    if config.output is not None:
        return fit(action.value, config.output, agent_input)
    text = action.value if isinstance(action.value, str) else dumps_ascii(action.value)
    if not text.strip():
        raise InvalidOutput("it is empty")
    return text


def _answer(config: AgentConfig, text: str, is_whole: bool, agent_input: Any) -> Any:
    if config.output is not None:
        return find_answer(text, config.output, agent_input, is_whole=is_whole)
    visible = without_thoughts(text, is_whole=is_whole)
    if not visible:
        raise InvalidOutput("it is empty")
    if not is_whole and config.sampling.max_tokens is None:
        raise InvalidOutput("it was cut off before its end")
    return visible
