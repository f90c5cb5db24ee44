"""Parser of action mode: the one JSON object of a turn is a tool call or the final answer."""

from typing import Any

from ..core.agent_config import ACTION_ARGUMENTS, ACTION_FINAL, ACTION_TOOL, InvalidOutput
from ..core.fast_dataclass import dataclass
from ..core.images import PlacedImage
from ..core.json import dumps_ascii
from ..core.messages import Message, ToolCall, ToolResult, ToolResults, User
from .answer_extraction import readings


@dataclass(frozen=True, slots=True)
class FinalAction:
    """Final answer of an agent in action mode, not yet validated."""

    value: Any


def read_action(text: str, call_id: str, *, is_whole: bool = True) -> ToolCall | FinalAction:
    """First action in `text`. Text after a call is ignored: the model made it up before it had the result.
    Raises InvalidOutput if there is no action."""
    for values in readings(text, is_whole=is_whole):
        for value in values:
            if not isinstance(value, dict):
                continue
            if isinstance(value.get(ACTION_TOOL), str):
                return ToolCall(call_id, value[ACTION_TOOL], _arguments(value.get(ACTION_ARGUMENTS)))
            if ACTION_FINAL in value:
                return FinalAction(value[ACTION_FINAL])
    raise InvalidOutput(
        "it must be one JSON object, "
        f'{{"{ACTION_TOOL}": ..., "{ACTION_ARGUMENTS}": {{...}}}} or {{"{ACTION_FINAL}": ...}}'
    )


def show_results(results: tuple[ToolResult, ...]) -> str:
    """Text of the message with which the model receives the results of its calls."""
    return "\n\n".join(
        f"{'Error' if result.is_error else 'Result'} of {result.call.name}: {result.content}" for result in results
    )


def render_history(message: Message) -> Message:
    """The message as it is sent to a model without native tool calls."""
    if not isinstance(message, ToolResults):
        return message
    text = show_results(message.results)
    images = (image for result in message.results for image in result.images)
    return User(text, images=tuple(PlacedImage(len(text), image) for image in images))


def _arguments(value: Any) -> str:
    """Arguments as JSON text. Some models write the object as a string."""
    if isinstance(value, str) and value.strip():
        return value
    return dumps_ascii(value or {})
