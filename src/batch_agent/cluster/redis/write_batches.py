"""Writes as a Redis script reads them: what concerns one agent together, in pieces of a size that a server likes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from typing import TypeVar, assert_never

from ...core.coordinator import Append, End, Replace, Write
from ...core.facts import Fact, Replied
from ...core.fast_dataclass import dataclass
from ...core.requests import NO_USAGE, Usage
from ...store.codec import decode, encode, encode_completion

T = TypeVar("T")

MOST_AT_ONCE = 500
_MOST_BYTES = 4_000_000


def agent_of(key: str) -> str:
    """Whose lease it is, for an agent or one of its parts."""
    return key.partition(".")[0]


def encode_fact(fact: Fact) -> bytes:
    kind, data = encode(fact)
    return kind.encode() + b"\n" + data


def decode_fact(data: bytes) -> Fact:
    """Raises ValueError."""
    kind, _, rest = data.partition(b"\n")
    return decode(kind.decode(errors="replace"), rest)


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """Some of the writes of one batch."""

    usage: Usage
    """What the replies among them took."""
    arguments: tuple[bytes | str | int, ...]
    refused: frozenset[str]
    """They come after the end of their agent."""


@dataclass(slots=True)
class _AgentWrites:
    is_new: bool = False
    facts: list[bytes] = field(default_factory=list)


def batches(writes: Sequence[Write]) -> list[WriteBatch]:
    """The same ones for the same writes."""
    encoded = ((write, _encoded(write)) for write in writes)
    return [_piece(some) for some in split_batches(encoded, lambda each: sum(map(len, each[1])))]


def split_batches(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    some: list[T] = []
    total = 0
    for item in items:
        length = size(item)
        if some and (len(some) >= MOST_AT_ONCE or total + length > _MOST_BYTES):
            yield some
            some, total = [], 0
        some.append(item)
        total += length
    if some:
        yield some


def _encoded(write: Write) -> list[bytes]:
    match write:
        case Append(fact=fact):
            return [encode_fact(fact)]
        case Replace(facts=facts):
            return [encode_fact(fact) for fact in facts]
        case End(completion=ending):
            return [encode_completion(ending)]
        case _:
            assert_never(write)


def _piece(writes: Sequence[tuple[Write, list[bytes]]]) -> WriteBatch:
    stories: dict[tuple[str, int], _AgentWrites] = {}
    ends: dict[tuple[str, int], tuple[End, bytes]] = {}
    refused: set[str] = set()
    usage = NO_USAGE
    for write, data in writes:
        usage += _usage(write)
        if (agent_of(write.key), write.token) in ends:
            refused.add(write.key)
        elif isinstance(write, End):
            ends[write.key, write.token] = (write, data[0])
        elif isinstance(write, Replace):
            stories[write.key, write.token] = _AgentWrites(True, data)
        else:
            stories.setdefault((write.key, write.token), _AgentWrites()).facts += data
    return WriteBatch(usage, tuple(_arguments(stories, ends)), frozenset(refused))


def _usage(write: Write) -> Usage:
    match write:
        case Append(fact=Replied(reply)):
            return reply.usage
        case Replace(facts=facts):
            return sum((fact.reply.usage for fact in facts if isinstance(fact, Replied)), NO_USAGE)
        case _:
            return NO_USAGE


def _arguments(
    stories: dict[tuple[str, int], _AgentWrites], ends: dict[tuple[str, int], tuple[End, bytes]]
) -> Iterator[bytes | str | int]:
    yield len(stories)
    for (key, token), story in stories.items():
        yield key
        yield agent_of(key)
        yield from (token, int(story.is_new), len(story.facts))
        yield from story.facts
    for (key, token), (end, data) in ends.items():
        yield key
        yield from (token, int(end.completion.error is not None))
        yield data
