"""Continuation of a prompt by ids: sampled tokens are sent as they were sampled, and the server renders only what was
added since."""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from ..core.fast_dataclass import dataclass
from ..core.messages import Assistant, Message, ToolResults, User
from ..core.requests import ID_BYTES, Reply, Request, TurnTokens


@dataclass(frozen=True, slots=True)
class LastTurn:
    """The last turn of a conversation."""

    number: int
    messages: tuple[Message, ...]
    """Messages of its request."""
    reply: Reply
    """The reply without its tokens."""
    tokens: TurnTokens
    rendered: int
    """Number of bytes at the beginning of the prompt that the server has rendered from messages."""

    @property
    def size(self) -> int:
        """Number of bytes of its ids."""
        return len(self.tokens.prompt) + len(self.tokens.sampled)

    @property
    def end_id(self) -> bytes:
        """The id that ended the turn; empty if there is none."""
        return b"" if self.tokens.finish == "length" else self.tokens.sampled[-ID_BYTES:]

    def is_continued_by(self, request: Request) -> bool:
        """Whether the request only adds messages to this turn. Not if it compacts, replaces or rewrites some of them,
        or has images, whose ids are unknown until they are encoded."""
        count, messages = len(self.messages), request.messages
        if len(messages) < count + 2 or any(map(_has_images, messages)):
            return False
        answer = messages[count]
        return isinstance(answer, Assistant) and _is_same(answer, self.reply) and messages[:count] == self.messages


def addition(last: LastTurn, rendered: bytes) -> bytes | None:
    """The part after a turn in `rendered`, which is the server's rendering of the request that continues it. None if
    the end of the turn cannot be found.

    The end is found by the id that ended the turn. A template writes this id after each message, so both renderings
    have it equally often up to the same message. The beginning, which the server has rendered before, must be equal,
    and is not searched."""
    sequence, end_id = last.tokens.sequence, last.end_id
    if not end_id or not rendered.startswith(sequence[: last.rendered]):
        return None
    ids = array("I", rendered[last.rendered :])
    ends, number = _ends(ids, end_id), count_ids(sequence[last.rendered :], end_id)
    return None if len(ends) < number else ids[ends[number - 1] :].tobytes()


Continuation = tuple[LastTurn, Request]
"""A turn and the request that continues it."""


def joint_request(turns: Sequence[Continuation]) -> Request:
    """Joins several conversations into one: the first, followed by the parts that come after the prompts of the
    others."""
    first = turns[0][1]
    added = [request.messages[len(last.messages) :] for last, request in turns[1:]]
    return replace(first, messages=tuple(chain(first.messages, *added)))


def joint_additions(first: LastTurn, rendered: bytes, count: int, ends_in_each: int) -> list[bytes] | None:
    """The parts after each turn in a joint request of `count` conversations, as rendered by the server. `ends_in_each`:
    number of occurrences, in each part, of the id that ends a turn.

    None if the rendering does not have the expected form: that many such ids, and after each part the same beginning of
    a turn as at the end. This also detects a text that contains such an id itself."""
    end_id, size = first.end_id, 1 + ends_in_each
    if not end_id or not ends_in_each or not rendered.startswith(first.tokens.prompt[: first.rendered]):
        return None
    ids = array("I", rendered[first.rendered :])
    before = count_ids(first.tokens.prompt[first.rendered :], end_id)
    ends = _ends(ids, end_id)
    if len(ends) != before + count * size:
        return None
    beginning = ids[ends[-1] :]
    spans = [(ends[at], ends[at + ends_in_each]) for at in range(before, len(ends), size)]
    if not beginning or any(ids[end : end + len(beginning)] != beginning for _, end in spans):
        return None
    return [(ids[start:end] + beginning).tobytes() for start, end in spans]


def count_ids(ids: bytes, wanted: bytes) -> int:
    """Number of occurrences of an id."""
    [one] = array("I", wanted)
    return array("I", ids).count(one)


def _has_images(message: Message) -> bool:
    if isinstance(message, ToolResults):
        return any(result.images for result in message.results)
    return isinstance(message, User) and bool(message.images)


def _is_same(message: Assistant, reply: Reply) -> bool:
    calls = [(call.name, call.arguments) for call in message.calls]
    return message.text == reply.text and calls == [(call.name, call.arguments) for call in reply.calls]


def _ends(ids: "array[int]", wanted: bytes) -> list[int]:
    """The positions after each of the wanted ids."""
    [one] = array("I", wanted)
    found, at = list[int](), 0
    try:
        while True:
            at = ids.index(one, at) + 1
            found.append(at)
    except ValueError:  # no further ones
        return found
