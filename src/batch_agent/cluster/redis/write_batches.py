"""Writes as arguments of a Redis script, grouped by agent into batches of limited size."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from typing import TypeVar

import orjson

from ...core.coordinator import Append, End, Replace, Write
from ...core.facts import Fact, Replied
from ...core.fast_dataclass import dataclass
from ...core.requests import NO_USAGE, Usage
from ...store.codec import decode, encode, encode_completion

T = TypeVar("T")

MAX_BATCH_ITEMS = 500
_MAX_BATCH_BYTES = 4_000_000


def agent_of(key: str) -> str:
    """The agent whose lease covers this key, which is that of an agent or of one of its chunks."""
    return key.partition(".")[0]


def encode_fact(fact: Fact) -> bytes:
    """Encodes a fact with its length, because facts are stored back to back."""
    kind, data = encode(fact)
    return b"%b %d\n%b" % (kind.encode(), len(data), data)


def decode_facts(encoded: bytes) -> tuple[Fact, ...]:
    """Raises ValueError."""
    return tuple([decode(kind, data) for kind, data in split_facts(encoded)])


def split_facts(encoded: bytes) -> Iterator[tuple[str, bytes]]:
    """Kind and data of each fact. Raises ValueError."""
    position, end = 0, len(encoded)
    while position < end:
        start = encoded.index(b"\n", position) + 1
        kind, _, length = encoded[position:start].partition(b" ")
        position = start + int(length)
        yield kind.decode(errors="replace"), encoded[start:position]


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """A part of one `write` call."""

    usage: Usage
    """Usage of the replies among the writes."""
    arguments: tuple[bytes, bytes]
    refused: frozenset[str]
    """Keys of writes that come after the end of their agent."""


@dataclass(slots=True)
class _AgentWrites:
    replaces: bool = False
    facts: list[bytes] = field(default_factory=list)


def batches(writes: Sequence[Write]) -> list[WriteBatch]:
    """Splits writes into batches. Deterministic: the same writes give the same batches."""
    encoded = ((write, _encode(write)) for write in writes)
    return [_batch(batch) for batch in split_batches(encoded, lambda each: sum(map(len, each[1])))]


def split_batches(
    items: Iterable[T], size: Callable[[T], int], *, max_items: int = MAX_BATCH_ITEMS
) -> Iterator[list[T]]:
    batch: list[T] = []
    total = 0
    for item in items:
        length = size(item)
        if batch and (len(batch) >= max_items or total + length > _MAX_BATCH_BYTES):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += length
    if batch:
        yield batch


def _encode(write: Write) -> list[bytes]:
    if type(write) is End:
        return [encode_completion(write.completion)]
    return [encode_fact(fact) for fact in _facts(write)]


def _batch(writes: Sequence[tuple[Write, list[bytes]]]) -> WriteBatch:
    histories: dict[tuple[str, int], _AgentWrites] = {}
    ends: dict[tuple[str, int], tuple[End, bytes]] = {}
    refused: set[str] = set()
    usage = NO_USAGE
    for write, data in writes:
        key, token = write.key, write.token
        for fact in _facts(write):
            if type(fact) is Replied:
                usage += fact.reply.usage
        if ends and (agent_of(key), token) in ends:
            refused.add(key)
        elif type(write) is End:
            ends[key, token] = (write, data[0])
        elif type(write) is Replace:
            histories[key, token] = _AgentWrites(True, data)
        elif (history := histories.get((key, token))) is not None:
            history.facts += data
        else:
            histories[key, token] = _AgentWrites(facts=data)
    return WriteBatch(usage, _arguments(histories, ends), frozenset(refused))


def _facts(write: Write) -> Sequence[Fact]:
    match write:
        case Append(fact=fact):
            return (fact,)
        case Replace(facts=facts):
            return facts
        case _:
            return ()


def _arguments(
    histories: dict[tuple[str, int], _AgentWrites], ends: dict[tuple[str, int], tuple[End, bytes]]
) -> tuple[bytes, bytes]:
    listed, ended, data = list[tuple[object, ...]](), list[tuple[object, ...]](), list[bytes]()
    for (key, token), history in histories.items():
        data += history.facts
        listed.append((key, agent_of(key), str(token), history.replaces, sum(map(len, history.facts))))
    for (key, token), (end, completion) in ends.items():
        data.append(completion)
        ended.append((key, str(token), end.completion.error is not None, len(completion)))
    return orjson.dumps((listed, ended)), b"".join(data)
