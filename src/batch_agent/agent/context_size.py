"""Size of a conversation in tokens: what the server counted, plus an estimate of what was added since."""

from collections.abc import Iterable
from typing import assert_never

from ..core.messages import Assistant, Message, ToolResult, ToolResults, User
from ..core.requests import Reply

_CHARS_PER_TOKEN = 4.0
_MIN_CHARS_PER_TOKEN, _MAX_CHARS_PER_TOKEN = 0.25, 16.0
"""From scripts with several tokens per character to long runs of spaces. Usage outside this range is not credible."""


class ContextSize:
    """Size of the next request. If the server counts nothing, all of it is estimated."""

    __slots__ = ("_chars", "_counted", "_counted_chars", "chars_per_token")

    def __init__(self, chars: int) -> None:
        self._chars = chars
        self._counted = 0
        self._counted_chars = 0
        self.chars_per_token = _CHARS_PER_TOKEN
        """Ratio of the last request."""

    @property
    def tokens(self) -> float:
        tokens = self._counted + (self._chars - self._counted_chars) / self.chars_per_token
        return tokens if tokens > 0 else 0.0

    def add(self, chars: int) -> None:
        """Adds characters; a negative number removes them."""
        self._chars += chars

    def on_reply(self, reply: Reply) -> None:
        """Adopts the server's count of the request and of the reply, which is now part of the conversation."""
        before, usage = self._chars, reply.usage
        self._chars += chars_of_turn(reply)
        if usage.input > 0:
            self.chars_per_token = min(_MAX_CHARS_PER_TOKEN, max(_MIN_CHARS_PER_TOKEN, before / usage.input))
            self._counted, self._counted_chars = usage.input + usage.output, self._chars


def chars_of_turn(turn: Assistant | Reply) -> int:
    """Characters of a turn of the model."""
    chars = len(turn.text)
    for call in turn.calls:
        chars += len(call.name) + len(call.arguments)
    for thought in turn.thoughts:
        chars += len(thought.text) + len(thought.redacted)
    return chars


def chars_in(messages: Iterable[Message]) -> int:
    return sum(map(chars_of, messages))


def chars_of(message: Message) -> int:
    match message:
        case User(text):
            images = sum(placed.image.chars for placed in message.images) if message.images else 0
            return len(text) + images
        case Assistant():
            return chars_of_turn(message)
        case ToolResults(results):
            chars = 0
            for result in results:
                chars += chars_of_result(result)
            return chars
        case _:
            assert_never(message)


def chars_of_result(result: ToolResult) -> int:
    """Characters of a tool result, its images included by their tokens."""
    if not result.images:
        return len(result.content)
    return len(result.content) + sum(image.chars for image in result.images)
