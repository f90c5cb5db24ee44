"""Reader of a whole run in a Redis server: its agents, their facts as they are encoded, and the jobs that wait."""

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from ...store.checkpoint_copy import EncodedFact

if TYPE_CHECKING:
    from .keyspace import RedisKeyspace
    from .redis_connection import RedisConnection

_PAGE = 500
_FACTS = "facts:"


class StoredRun:
    """Reads page by page, while workers write. Raises StoreError."""

    def __init__(self, connection: "RedisConnection", keyspace: "RedisKeyspace") -> None:
        self._connection = connection
        self._keyspace = keyspace

    async def agents(self) -> AsyncIterator[list[bytes]]:
        """Keys of agents and chunks that have facts; some may be repeated."""
        prefix = self._keyspace.key(_FACTS).encode()
        async for keys in self._keyspace.scan(_FACTS, _PAGE):
            yield [key.removeprefix(prefix) for key in keys]

    async def facts(self, keys: Sequence[bytes]) -> list[EncodedFact]:
        """Facts of these agents, in the order of each."""
        prefix = self._keyspace.key(_FACTS).encode()
        lists = await self._connection.pipeline([("LRANGE", prefix + key, 0, -1) for key in keys]) if keys else []
        return [
            (key.decode(), kind.decode(errors="replace"), data)
            for key, facts in zip(keys, lists, strict=True)
            for kind, _, data in (fact.partition(b"\n") for fact in facts)
        ]

    async def jobs(self) -> AsyncIterator[tuple[bytes, bool]]:
        """Jobs of agents that have not ended, each with whether a worker that is alive has it."""
        first: Any = "-"
        while True:
            rows = await self._connection.call("XRANGE", self._keyspace.key("work"), first, "+", "COUNT", _PAGE)
            if not rows:
                return
            found = [next(iter(fields.items())) for _, fields in rows]
            records = await self._connection.call("HMGET", self._keyspace.key("agents"), *(key for key, _ in found))
            workers = [None if record is None else record.split(b" ", 3)[3] for record in records]
            alive = await self._alive({worker for worker in workers if worker})
            for (_, job), worker in zip(found, workers, strict=True):
                if worker is not None:
                    yield job, worker in alive
            first = b"(" + rows[-1][0]

    async def _alive(self, workers: set[bytes]) -> set[bytes]:
        prefix, listed = self._keyspace.key("alive:").encode(), sorted(workers)
        found = await self._connection.pipeline([("EXISTS", prefix + worker) for worker in listed]) if listed else []
        return {worker for worker, exists in zip(listed, found, strict=True) if exists}
