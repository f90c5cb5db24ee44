"""Work queue in Redis."""

import secrets
from collections.abc import Iterator, Mapping, Sequence

import orjson

from ... import aio
from ...core.agent_config import Job
from ...core.coordinator import Completion, Lease
from ...store.codec import decode_completion, decode_job, encode_job
from .facts import RedisFactTable
from .keyspace import RedisKeyspace, millis
from .lua.work import LEASE, LEAVE, RELEASE, RENEW, SUBMIT
from .registration import RunRegistration
from .write_batches import MAX_BATCH_ITEMS, split_batches

_EXPIRY_CHECKS = 3
"""Number of times per lease duration that a waiting worker checks for expired leases. The check also counts as a sign
of life."""


class RedisWorkQueue:
    """Agents of a run. A lease comes with the stored data of its agent."""

    def __init__(self, keyspace: RedisKeyspace, registration: RunRegistration, facts: RedisFactTable) -> None:
        self._keyspace = keyspace
        self._connection = keyspace.connection
        self._registration = registration
        self._facts = facts

    async def submit(self, jobs: Sequence[Job], *, retry_failed: bool) -> dict[str, Completion]:
        await self._registration.register()
        ended: dict[str, Completion] = {}
        encoded = ((job.key, encode_job(job)) for job in jobs)
        for batch in split_batches(encoded, lambda each: len(each[1])):
            listed = orjson.dumps([(key, len(data)) for key, data in batch])
            creation_mark, *found = await self._keyspace.script(
                SUBMIT, int(retry_failed), secrets.token_hex(8), listed, b"".join(data for _, data in batch)
            )
            self._registration.on_submitted(creation_mark)
            ended.update((key.decode(), decode_completion(data)) for key, data in _pairs(found))
        return ended

    async def pending_count(self) -> int:
        return int(await self._connection.call("HGET", self._keyspace.key("state"), "pending") or 0)

    async def lease(self, worker: str, max_jobs: int, *, ttl: float, wait: float, parts: float = 1) -> list[Lease]:
        deadline = aio.now() + wait
        while True:
            leases, wake_up = await self._lease(worker, min(max_jobs, MAX_BATCH_ITEMS), parts, ttl)
            if leases or (left := deadline - aio.now()) <= 0:
                return leases
            pause = min(left, ttl / _EXPIRY_CHECKS)
            if not await self._keyspace.streams({"bell": wake_up}, 1, pause) and pause == left:
                return []

    async def renew(self, worker: str, tokens: Mapping[str, int], *, ttl: float) -> frozenset[str]:
        lost: set[bytes] = set()
        for batch in split_batches(tokens.items(), _no_bytes) if tokens else [[]]:
            lost.update(await self._keyspace.script(RENEW, worker, millis(ttl), *_flat(batch)))
        return frozenset(key.decode() for key in lost)

    async def release(self, worker: str, tokens: Mapping[str, int]) -> None:
        for batch in split_batches(tokens.items(), _no_bytes):
            await self._keyspace.script(RELEASE, worker, *_flat(batch))

    async def leave(self, worker: str) -> None:
        await self._keyspace.script(LEAVE, worker)

    async def _lease(self, worker: str, max_jobs: int, parts: float, ttl: float) -> tuple[list[Lease], str]:
        """Leases agents. Without any, also returns the last wake-up entry."""
        arguments, had_work = (worker, max_jobs, str(parts), millis(ttl)), self._registration.has_work
        wake_up, found = await self._keyspace.run_idempotent(LEASE, *arguments)
        if wake_up is not None:
            self._registration.has_work = True
        elif had_work:
            raise self._keyspace.lost()
        rows = list(map(_read_lease, found))
        with_facts = [job.key for job, _, _, entries in rows if entries]
        fact_lists = dict(zip(with_facts, await self._facts.read_many(with_facts), strict=True))
        leases = [Lease(job, token, fact_lists.get(job.key, ()), attempts) for job, token, attempts, _ in rows]
        return leases, "0-0" if wake_up is None else wake_up.decode()


def _read_lease(row: bytes) -> tuple[Job, int, int, int]:
    """A job, its token, its attempts, and its number of fact entries."""
    numbers, _, job = row.partition(b"\n")
    token, attempts, entries = map(int, numbers.split())
    return decode_job(job), token, attempts, entries


def _flat(pairs: Sequence[tuple[str, int]]) -> Iterator[str | int]:
    for key, value in pairs:
        yield key
        yield value


def _pairs(flat: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _no_bytes(_: object) -> int:
    return 0
