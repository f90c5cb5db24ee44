"""Facts of a coordinator in memory, which are kept in a store."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from ...core.coordinator import Append, Completion, End, Replace, Write
from ...core.facts import Claimed, Fact, Replied
from ...core.protocols.store import Store
from ...core.requests import NO_USAGE, Usage
from .updates import MemoryUpdateStream
from .work_queue import MemoryWorkQueue


@dataclass(slots=True)
class _LastBatch:
    """The last batch of a worker."""

    number: int = 0
    refused: frozenset[str] = frozenset()
    ended: list[Completion] = field(default_factory=list)
    """Completions that are published once the facts are durable."""


class MemoryFactTable:
    """Facts of all agents, kept in a store. A write that ends an agent also ends it in the work queue."""

    def __init__(self, store: Store, work: MemoryWorkQueue, updates: MemoryUpdateStream) -> None:
        self._store = store
        self._work = work
        self._updates = updates
        self._last_batches: dict[str, _LastBatch] = {}
        self._refused = NO_USAGE

    async def read(self, key: str) -> tuple[Fact, ...]:
        return tuple(await self._store.facts(key))

    async def read_many(self, keys: Sequence[str]) -> list[tuple[Fact, ...]]:
        return [await self.read(key) for key in keys]

    async def write(self, worker: str, number: int, writes: Sequence[Write]) -> frozenset[str]:
        last_batch = self._last_batches.setdefault(worker, _LastBatch())
        if number > last_batch.number:
            last_batch.number, last_batch.refused = number, self._apply(writes, last_batch.ended)
        await self._store.settle(
            sync=any(isinstance(each, Append) and isinstance(each.fact, Claimed) for each in writes)
        )
        ended, last_batch.ended = last_batch.ended, []
        for completion in ended:
            self._updates.add_completion(completion)
        return last_batch.refused

    async def spent(self) -> Usage:
        return await self._store.spent() + self._refused

    def _apply(self, writes: Sequence[Write], ended: list[Completion]) -> frozenset[str]:
        refused: set[str] = set()
        for write in writes:
            if self._work.holds(write.key.partition(".")[0], write.token):
                self._apply_one(write, ended)
            else:
                refused.add(write.key)
                self._refused += _usage(write)
        return frozenset(refused)

    def _apply_one(self, write: Write, ended: list[Completion]) -> None:
        match write:
            case Append(key, _, fact):
                self._work.add_facts(key)
                self._store.record(key, fact)
            case Replace(key, _, facts):
                self._work.add_facts(key)
                self._store.restart(key, facts)
            case End(token, completion):
                self._work.end(completion, token)
                ended.append(completion)
            case _:
                assert_never(write)


def _usage(write: Write) -> Usage:
    return write.fact.reply.usage if isinstance(write, Append) and isinstance(write.fact, Replied) else NO_USAGE
