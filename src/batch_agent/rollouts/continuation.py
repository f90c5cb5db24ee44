"""Continuation of a prompt by ids: what the model sampled stays as it was sampled, and only what was added since is
rendered by the server."""

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

    @property
    def end_id(self) -> bytes:
        """The id that ended the turn; empty if none did."""
        return b"" if self.tokens.finish == "length" else self.tokens.sampled[-ID_BYTES:]

    def is_continued_by(self, request: Request) -> bool:
        """Whether the request only adds messages to this turn. One that compacts, replaces or rewrites some of them
        does not, and neither does one with images, whose ids are not known before they are encoded."""
        count, messages = len(self.messages), request.messages
        if len(messages) < count + 2 or any(map(_has_images, messages)):
            return False
        answer = messages[count]
        return isinstance(answer, Assistant) and _is_same(answer, self.reply) and messages[:count] == self.messages


def addition(last: LastTurn, rendered: bytes) -> bytes | None:
    """What follows a turn in `rendered`, the request that continues it as the server renders it. None if the end of the
    turn cannot be found.

    The end is found by the id that ended the turn. A template writes it after each message, so that up to the same
    message both have equally many of it. The beginning, which the server has rendered before, must be the same, and is
    not searched."""
    sequence, end_id = last.tokens.sequence, last.end_id
    if not end_id or not rendered.startswith(sequence[: last.rendered]):
        return None
    ids = array("I", rendered[last.rendered :])
    ends, number = _ends(ids, end_id), count_ids(sequence[last.rendered :], end_id)
    return None if len(ends) < number else ids[ends[number - 1] :].tobytes()


Continuation = tuple[LastTurn, Request]
"""A turn, and the request that continues it."""


def joint_request(turns: Sequence[Continuation]) -> Request:
    """One conversation of several: the first, then what follows the prompts of the others."""
    first = turns[0][1]
    added = [request.messages[len(last.messages) :] for last, request in turns[1:]]
    return replace(first, messages=tuple(chain(first.messages, *added)))


def joint_additions(first: LastTurn, rendered: bytes, count: int, ends_in_each: int) -> list[bytes] | None:
    """What follows each turn in a joint request of `count` conversations, as the server renders it. `ends_in_each`:
    how often the id that ends a turn occurs in what follows one.

    None if the rendering does not have the expected form: that many such ids, and behind each part the same beginning
    of a turn as at the end. A text that has such an id itself is found by that."""
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
    """How often an id occurs."""
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
    """The positions behind each of the wanted ids."""
    [one] = array("I", wanted)
    found, at = list[int](), 0
    try:
        while True:
            at = ids.index(one, at) + 1
            found.append(at)
    except ValueError:  # no more
        return found
