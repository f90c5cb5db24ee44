"""Cache of encoded conversations: a turn of a long conversation encodes only the messages that are new."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from operator import is_

from ...core.fast_dataclass import dataclass
from ...core.messages import Message

_MIN_MESSAGES = 8
"""Shorter conversations are encoded faster than they are kept."""
_MAX_BYTES = 32 * 1024 * 1024
_MAX_CONVERSATION_BYTES = 1024 * 1024
"""A longer one has images, or takes the server longer than it takes to encode it."""


@dataclass(frozen=True, slots=True)
class _Encoded:
    messages: Sequence[Message]
    data: bytes


class ConversationCache:
    """Encoded conversations of the agents that asked last, of a bounded size in all. Messages are never changed, so
    those that are the same objects as before have the same bytes."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, _Encoded] = OrderedDict()
        self._size = 0

    def encode(self, agent: str, messages: Sequence[Message], encode: Callable[[Message], bytes]) -> bytes:
        """The messages, joined by commas. `encode`: encodes a message, always in the same way for an agent."""
        if len(messages) < _MIN_MESSAGES or not agent:
            return b",".join([encode(message) for message in messages])
        earlier = self._take(agent)
        if earlier is not None and _begins_with(messages, earlier.messages):
            data = b",".join([earlier.data, *map(encode, messages[len(earlier.messages) :])])
        else:
            data = b",".join([encode(message) for message in messages])
        self._keep(agent, _Encoded(messages, data))
        return data

    def _take(self, agent: str) -> _Encoded | None:
        encoded = self._kept.pop(agent, None)
        if encoded is not None:
            self._size -= len(encoded.data)
        return encoded

    def _keep(self, agent: str, encoded: _Encoded) -> None:
        if len(encoded.data) > _MAX_CONVERSATION_BYTES:
            return
        self._kept[agent] = encoded
        self._size += len(encoded.data)
        while self._size > _MAX_BYTES:
            _, oldest = self._kept.popitem(last=False)
            self._size -= len(oldest.data)


def _begins_with(messages: Sequence[Message], earlier: Sequence[Message]) -> bool:
    return len(earlier) <= len(messages) and all(map(is_, earlier, messages))
