"""A conversation as a program tells it, message by message."""

from collections.abc import Sequence
from typing import NamedTuple

from ...core.messages import Assistant, Message, ToolCall, ToolResult, ToolResults, User


class ToolOutput(NamedTuple):
    """What a program says that a call gave."""

    id: str
    content: str
    is_error: bool = False


class ConversationBuilder:
    """Grows at its end only, so that a conversation that goes on begins as it did."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._calls: dict[str, ToolCall] = {}

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(self._messages)

    def user(self, text: str) -> None:
        self._messages.append(User(text))

    def assistant(self, said: Assistant) -> None:
        self._messages.append(said)
        self._calls |= {call.id: call for call in said.calls}

    def results(self, outcomes: Sequence[ToolOutput]) -> None:
        """One after the other they belong together. Those of calls that nobody made, as where a program has cut off
        the beginning, are ordinary texts: servers refuse a result without its call."""
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
