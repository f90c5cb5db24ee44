"""How many tokens a conversation has: what the server counted, and an estimate of what came after."""

from collections.abc import Iterable
from typing import assert_never

from ..core.messages import Assistant, Message, ToolResults, User
from ..core.requests import Reply

_CHARS_PER_TOKEN = 4.0
_FEWEST, _MOST = 0.25, 16.0
"""Characters of a token, from scripts that take several tokens for one to long runs of spaces. A server that counts
otherwise counts something else."""


class ContextSize:
    """Of the next request. Where the server counts nothing, all of it is estimated."""

    __slots__ = ("_chars", "_counted", "_counted_chars", "chars_per_token")

    def __init__(self, chars: int) -> None:
        self._chars = chars
        self._counted = 0
        self._counted_chars = 0
        self.chars_per_token = _CHARS_PER_TOKEN
        """As the last request had it."""

    @property
    def tokens(self) -> float:
        return max(0.0, self._counted + (self._chars - self._counted_chars) / self.chars_per_token)

    def grew(self, chars: int) -> None:
        """By so many characters; negative where it shrank."""
        self._chars += chars

    def heard(self, reply: Reply) -> None:
        """What was sent so far has been counted, and so has the reply, which is part of the conversation now."""
        usage = reply.usage
        if usage.input > 0:
            self.chars_per_token = min(_MOST, max(_FEWEST, self._chars / usage.input))
        self._chars += message_text(reply)
        if usage.input > 0:
            self._counted, self._counted_chars = usage.input + usage.output, self._chars


def message_text(words: Assistant | Reply) -> int:
    """Characters of a turn of the model."""
    chars = len(words.text)
    for call in words.calls:
        chars += len(call.name) + len(call.arguments)
    for thought in words.thoughts:
        chars += len(thought.text) + len(thought.redacted)
    return chars


def chars_in(messages: Iterable[Message]) -> int:
    return sum(map(chars_of, messages))


def chars_of(message: Message) -> int:
    match message:
        case User(text):
            return len(text)
        case Assistant():
            return message_text(message)
        case ToolResults(results):
            return sum(len(result.content) for result in results)
        case _:
            assert_never(message)
