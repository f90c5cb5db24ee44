"""Continuation of a prompt by ids: what the model sampled stays as it was sampled, and only what was added since is
rendered by the server."""

from array import array

from ..core.fast_dataclass import dataclass
from ..core.messages import Assistant, Message
from ..core.requests import ID_BYTES, Reply, Request, TurnTokens


@dataclass(frozen=True, slots=True)
class LastTurn:
    """The last turn of a conversation."""

    number: int
    messages: tuple[Message, ...]
    """Of its request."""
    reply: Reply
    """Without tokens."""
    tokens: TurnTokens
    rendered: int
    """Bytes of the prompt, at its beginning, that the server has rendered from messages."""

    @property
    def size(self) -> int:
        """Bytes of its ids."""
        return len(self.tokens.prompt) + len(self.tokens.sampled)

    def is_continued_by(self, request: Request) -> bool:
        """Whether the request only adds messages to this turn. One that compacts, replaces or rewrites some of them
        does not, and neither does one with images, whose ids are not known before they are encoded."""
        count, messages = len(self.messages), request.messages
        if len(messages) < count + 2 or any(getattr(message, "images", ()) for message in messages):
            return False
        answer = messages[count]
        return isinstance(answer, Assistant) and _is_same(answer, self.reply) and messages[:count] == self.messages


def continued_prompt(last: LastTurn, rendered: bytes) -> bytes | None:
    """The prompt of a request that continues a turn: the ids of the turn, and those behind its end in `rendered`, the
    request as the server renders it. None if the end cannot be found.

    The end is found by the id that ended the turn. A template writes it after each message, so that up to the same
    message both have equally many of it. The beginning, which the server has rendered before, must be the same, and is
    not searched."""
    sequence, end_id = last.tokens.sequence, last.tokens.sampled[-ID_BYTES:]
    if not end_id or last.tokens.finish == "length" or not rendered.startswith(sequence[: last.rendered]):
        return None
    end = _end_of(rendered[last.rendered :], end_id, _count(sequence[last.rendered :], end_id))
    return None if end is None else sequence + rendered[last.rendered + end :]


def _is_same(message: Assistant, reply: Reply) -> bool:
    calls = [(call.name, call.arguments) for call in message.calls]
    return message.text == reply.text and calls == [(call.name, call.arguments) for call in reply.calls]


def _end_of(ids: bytes, wanted: bytes, number: int) -> int | None:
    """Where the `number`th of the wanted ids ends, in bytes."""
    found, at = array("I", ids), 0
    [one] = array("I", wanted)
    try:
        for _ in range(number):
            at = found.index(one, at) + 1
    except ValueError:  # there are fewer
        return None
    return at * ID_BYTES


def _count(ids: bytes, wanted: bytes) -> int:
    [one] = array("I", wanted)
    return array("I", ids).count(one)
