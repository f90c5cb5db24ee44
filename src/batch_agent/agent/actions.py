"""Action mode as the agent reads it: a turn's one JSON object is a tool call or the final answer."""

from dataclasses import dataclass
from typing import Any

import orjson

from ..core.messages import ToolCall, ToolResult
from ..core.rules import ACTION_ARGUMENTS, ACTION_FINAL, ACTION_TOOL, InvalidOutput
from .answer import readings


@dataclass(frozen=True, slots=True)
class Final:
    value: Any


def read_action(text: str, call_id: str, *, may_repair: bool = True) -> ToolCall | Final:
    """The action in `text`. Raises InvalidOutput when there is none."""
    for value in readings(text, may_repair=may_repair):
        if not isinstance(value, dict):
            continue
        if isinstance(value.get(ACTION_TOOL), str):
            arguments = orjson.dumps(value.get(ACTION_ARGUMENTS) or {}).decode()
            return ToolCall(call_id, value[ACTION_TOOL], arguments)
        if ACTION_FINAL in value:
            return Final(value[ACTION_FINAL])
    raise InvalidOutput(
        "it must be one JSON object, "
        f'{{"{ACTION_TOOL}": ..., "{ACTION_ARGUMENTS}": {{...}}}} or {{"{ACTION_FINAL}": ...}}'
    )


def show_results(results: tuple[ToolResult, ...]) -> str:
    """What the model reads after its calls."""
    return "\n\n".join(
        f"{result.call.name} {'failed' if result.is_error else 'returned'}:\n{result.content}" for result in results
    )
