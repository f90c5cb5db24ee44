"""Facts in Redis."""

import asyncio
import itertools
from collections.abc import Sequence

import orjson

from ... import aio
from ...core.coordinator import Write
from ...core.errors import StoreError
from ...core.facts import Fact
from ...core.requests import NO_USAGE, Usage
from .keyspace import RedisKeyspace
from .lua.facts import FACTS, WRITE
from .write_batches import batches, decode_facts, split_batches

_MAX_HISTORIES = 64
"""Number of agents whose facts are read with one command."""
_MAX_READS = 8
"""Maximum number of such commands at a time. A busy caller that waited for each of them would fall behind its
workers."""


class RedisFactTable:
    """Facts of all agents of a run."""

    def __init__(self, keyspace: RedisKeyspace) -> None:
        self._keyspace = keyspace
        self._connection = keyspace.connection

    async def read(self, key: str) -> tuple[Fact, ...]:
        return (await self.read_many([key]))[0]

    async def read_many(self, keys: Sequence[str]) -> list[tuple[Fact, ...]]:
        found = zip(keys, await self.encoded(keys), strict=True)
        return [self._decoded(key, encoded) for key, encoded in found]

    async def encoded(self, keys: Sequence[str]) -> list[bytes]:
        """Encoded facts of each agent or chunk, in the format that `split_facts` reads."""
        found: list[bytes] = []
        remaining = split_batches(keys, len, max_items=_MAX_HISTORIES)
        while parts := list(itertools.islice(remaining, _MAX_READS)):
            with aio.ungrouped():
                async with asyncio.TaskGroup() as group:
                    reading = [group.create_task(self._encoded(part)) for part in parts]
            for task in reading:
                found += task.result()
        return found

    async def _encoded(self, keys: Sequence[str]) -> list[bytes]:
        lengths, facts = await self._keyspace.script(FACTS, orjson.dumps(keys))
        ends = itertools.accumulate(map(int, lengths.split()), initial=0)
        return [facts[start:end] for start, end in itertools.pairwise(ends)]

    async def write(self, worker: str, number: int, writes: Sequence[Write]) -> frozenset[str]:
        refused: set[str] = set()
        listed = batches(writes)
        for remaining, part in zip(range(len(listed) - 1, -1, -1), listed, strict=True):
            batch = (worker, number, remaining, " ".join(map(str, part.usage.counts)))
            found = await self._keyspace.script(WRITE, *batch, *part.arguments)
            refused |= part.refused
            refused.update(key.decode() for key in found)
        return frozenset(refused)

    async def spent(self) -> Usage:
        counts = await self._connection.call("HGET", self._keyspace.key("state"), "spent")
        return Usage.of_counts(list(map(int, counts.split()))) if counts else NO_USAGE

    def _decoded(self, key: str, encoded: bytes) -> tuple[Fact, ...]:
        try:
            return decode_facts(encoded)
        except ValueError as error:
            message = f"{self._keyspace.title}: the facts of agent {key} cannot be read: {error}"
            raise StoreError(message) from error
