"""Builds a conversation from a program's messages."""

from collections.abc import Sequence
from typing import NamedTuple

from ...core.messages import Assistant, Message, ToolCall, ToolResult, ToolResults, User


class ToolOutput(NamedTuple):
    """A tool result in the form that the program sent."""

    id: str
    content: str
    is_error: bool = False


class ConversationBuilder:
    """Builds a conversation by appending only, so that a continued conversation keeps its prefix."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._calls: dict[str, ToolCall] = {}

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(self._messages)

    def user(self, text: str) -> None:
        self._messages.append(User(text))

    def assistant(self, message: Assistant) -> None:
        self._messages.append(message)
        self._calls |= {call.id: call for call in message.calls}

    def results(self, outcomes: Sequence[ToolOutput]) -> None:
        """Adds consecutive results as one message. A result whose call is unknown, for example because a program cut
        off the beginning of the conversation, becomes a user message: servers reject a result without its call."""
        known = tuple(
            ToolResult(self._calls[each.id], each.content, each.is_error) for each in outcomes if each.id in self._calls
        )
        last = self._messages[-1] if self._messages else None
        if known and isinstance(last, ToolResults):
            self._messages[-1] = ToolResults(last.results + known)
        elif known:
            self._messages.append(ToolResults(known))
        for each in outcomes:
            if each.id not in self._calls:
                self.user(f"[The result of an earlier tool call]\n{each.content}")
