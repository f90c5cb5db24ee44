"""Reader of a whole run on a Redis server: its agents, their encoded facts, and the waiting jobs."""

from collections.abc import AsyncIterator, Sequence

from ...core.errors import StoreError
from ...store.checkpoint_copy import EncodedFact
from .facts import RedisFactTable
from .keyspace import RedisKeyspace
from .write_batches import split_facts

_PAGE = 500
_HAS_ENDED = b"!"
_COMPLETION = b'["'
"""Beginning of a completion, which replaces the job of an agent. A completion starts with the agent's key, a job with
its index."""


class StoredRun:
    """Reads a run page by page, while workers write to it. Raises StoreError."""

    def __init__(self, keyspace: RedisKeyspace, facts: RedisFactTable) -> None:
        self._connection = keyspace.connection
        self._keyspace = keyspace
        self._facts = facts

    async def agents(self) -> AsyncIterator[list[str]]:
        """Keys of agents and chunks that have facts, possibly with duplicates."""
        async for page in self._keyspace.scan_state("entries", _PAGE):
            yield list(page)

    async def facts(self, keys: Sequence[str]) -> list[EncodedFact]:
        """Facts of these agents, in order for each agent."""
        lists = await self._facts.encoded(keys)
        try:
            return [
                (key, kind, data)
                for key, encoded in zip(keys, lists, strict=True)
                for kind, data in split_facts(encoded)
            ]
        except ValueError as error:
            raise StoreError(f"Facts of the run cannot be read: {error}") from error

    async def jobs(self) -> AsyncIterator[tuple[bytes, bool]]:
        """Jobs of agents that have not ended, each with whether a live worker holds it. May contain duplicates."""
        async for page in self._keyspace.scan_state("agent", _PAGE):
            workers = {
                key: record.split(b" ", 2)[2].decode()
                for key, record in page.items()
                if not record.startswith(_HAS_ENDED)
            }
            jobs = await self._keyspace.read_state([f"data:{key}" for key in workers])
            alive = await self._alive(sorted({worker for worker in workers.values() if worker}))
            for job, worker in zip(jobs, workers.values(), strict=True):
                if job is not None and not job.startswith(_COMPLETION):  # it may have ended since the page was read
                    yield job, worker in alive

    async def _alive(self, workers: Sequence[str]) -> set[str]:
        if not workers:
            return set()
        seconds, micros = await self._connection.call("TIME")
        now = int(seconds) * 1_000 + int(micros) // 1_000
        until = await self._keyspace.read_state([f"alive:{worker}" for worker in workers])
        return {worker for worker, time in zip(workers, until, strict=True) if time is not None and int(time) > now}
