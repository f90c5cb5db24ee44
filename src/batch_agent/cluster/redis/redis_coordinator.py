"""Coordinator in Redis: it outlives the workers, which may be anywhere. Needs the extra `redis`."""

import asyncio
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ... import aio
from ...core.agent_config import Job
from ...core.coordinator import Completion, Cursor, Document, Lease, RejectedInput, Updates, Write, permit_update
from ...core.errors import SpecError
from ...core.facts import Fact
from ...core.protocols import Prices
from ...core.requests import NO_USAGE, Usage
from ...store.codec import decode_completion, decode_job, encode_job
from . import lua_documents, lua_permits, lua_work
from .call_batches import CallBatches, CallChange
from .durability_check import warn_if_not_durable
from .input_record import InputRecord
from .keyspace import RedisKeyspace, millis
from .stored_run import StoredRun
from .write_batches import MAX_BATCH_ITEMS, batches, split_batches

if TYPE_CHECKING:
    from .redis_connection import RedisConnection

PREFIX = "batch-agent:"
_RUNS = f"{PREFIX}runs"
_RETRY_SECONDS = 60.0
_RETRY_SECONDS_AT_OPEN = 10.0
"""Shorter, for a mistyped host."""
_EXPIRY_CHECKS = 3
"""Per lease duration: how often a waiting worker checks for expired leases, which also counts as a sign of life."""
_POLL_INTERVAL = 0.04
"""Seconds between two polls: updates that come one after the other are read together."""
_PAGE = 1_000
_EVENTS, _NEWS = "events", "news"
_UPDATE_STREAMS = ("ended", _EVENTS, _NEWS)
"""Streams of updates, in the order of a cursor. Workers read only the last."""
_NOT_READ = "-"
"""In a cursor: the stream is not read."""


class RedisCoordinator:
    """Coordinator for `store="redis://..."`. All keys of a run begin with `batch-agent:{RUN}:`; values are JSON and
    bytes."""

    is_durable = True

    def __init__(self, url: str, run: str, *, retry_seconds: float = _RETRY_SECONDS) -> None:
        """`retry_seconds`: how long an unreachable server is retried. Raises SpecError."""
        if not run or not set(run).isdisjoint("{}"):
            raise SpecError(f"run_id={run!r} is invalid: it must not be empty or contain braces.")
        self._connection = _connect(url, retry_seconds)
        self._name = run
        self._run = RedisKeyspace(self._connection, run, f"{PREFIX}{{{run}}}:")
        self.url = self._connection.display_url
        """URL of the server, without a password."""
        self.inputs = InputRecord(self._connection, self._run)
        self.stored = StoredRun(self._connection, self._run)
        self._retry_seconds = retry_seconds
        self._is_registered = False
        """Whether the run is in the server's list of runs."""
        self._has_work = False
        """Whether work was ever submitted: then the server must still have it."""
        self._creation_mark: bytes | None = None
        """The run's creation mark, for a submitter: another one means another run, and that submitted work is lost."""
        self._calls = CallBatches(self._change_calls)
        self._next_poll = 0.0

    async def open(self) -> None:
        try:
            await self._connection.call("PING", retry_seconds=min(self._retry_seconds, _RETRY_SECONDS_AT_OPEN))
            await warn_if_not_durable(self._connection)
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        await self._connection.aclose()

    async def delete_run(self) -> None:
        async for keys in self._run.scan("", _PAGE):
            if keys:
                await self._connection.call("UNLINK", *keys)
        await self._connection.call("SREM", _RUNS, self._name)
        self._is_registered = self._has_work = False
        self._creation_mark = None

    async def read(self, name: str) -> Document:
        data, (seconds, micros) = await self._connection.pipeline(
            [("GET", self._run.key(f"document:{name}")), ("TIME",)]
        )
        return Document(data, int(seconds) + int(micros) / 1e6)

    async def compare_and_set(self, name: str, old: bytes | None, new: bytes | None) -> bool:
        await self._register()
        values = (name, int(old is not None), old or b"", int(new is not None), new or b"")
        return bool(await self._run.run_idempotent(lua_documents.COMPARE_AND_SET, *values))

    async def submit(self, jobs: Sequence[Job], *, retry_failed: bool) -> dict[str, Completion]:
        await self._register()
        ended: dict[str, Completion] = {}
        encoded = ((job.key, encode_job(job)) for job in jobs)
        for batch in split_batches(encoded, lambda each: len(each[1])):
            creation_mark, *found = await self._run.script(
                lua_work.SUBMIT, int(retry_failed), secrets.token_hex(8), *_flat(batch)
            )
            if self._creation_mark not in (None, creation_mark):
                raise self._run.lost()
            self._creation_mark = creation_mark
            ended.update((key.decode(), decode_completion(data)) for key, data in _pairs(found))
        return ended

    async def save_run(self, inputs: Sequence[bytes], prices: Prices | None) -> None:
        await self._register()
        await self.inputs.save(inputs, prices)

    async def reject(self, rejected: Sequence[RejectedInput]) -> None:
        await self.inputs.reject(rejected)

    async def pending_count(self) -> int:
        return int(await self._connection.call("HGET", self._run.key("state"), "pending") or 0)

    async def lease(self, worker: str, max_jobs: int, *, ttl: float, wait: float, parts: float = 1) -> list[Lease]:
        deadline = aio.now() + wait
        while True:
            leases, wake_up = await self._lease(worker, min(max_jobs, MAX_BATCH_ITEMS), parts, ttl)
            if leases or (left := deadline - aio.now()) <= 0:
                return leases
            pause = min(left, ttl / _EXPIRY_CHECKS)
            if not await self._run.streams({"bell": wake_up}, 1, pause) and pause == left:
                return []

    async def _lease(self, worker: str, max_jobs: int, parts: float, ttl: float) -> tuple[list[Lease], str]:
        """Also returns the last wake-up entry, if there are no leases."""
        arguments, had_work = (worker, max_jobs, str(parts), millis(ttl)), self._has_work
        wake_up, found = await self._run.run_idempotent(lua_work.LEASE, *arguments)
        if wake_up is not None:
            self._has_work = True
        elif had_work:
            raise self._run.lost()
        rows = list(map(_read_lease, found))
        with_facts = [job.key for job, _, _, entries in rows if entries]
        fact_lists = dict(zip(with_facts, await self._run.fact_lists(with_facts), strict=True))
        leases = [Lease(job, token, fact_lists.get(job.key, ()), attempts) for job, token, attempts, _ in rows]
        return leases, "0-0" if wake_up is None else wake_up.decode()

    async def renew(self, worker: str, tokens: Mapping[str, int], *, ttl: float) -> frozenset[str]:
        lost: set[bytes] = set()
        for batch in split_batches(tokens.items(), _no_bytes) if tokens else [[]]:
            lost.update(await self._run.script(lua_work.RENEW, worker, millis(ttl), *_flat(batch)))
        return frozenset(key.decode() for key in lost)

    async def release(self, worker: str, tokens: Mapping[str, int]) -> None:
        for batch in split_batches(tokens.items(), _no_bytes):
            await self._run.script(lua_work.RELEASE, worker, *_flat(batch))

    async def leave(self, worker: str) -> None:
        await self._run.script(lua_work.LEAVE, worker)

    async def facts(self, key: str) -> tuple[Fact, ...]:
        return (await self._run.fact_lists([key]))[0]

    async def fact_lists(self, keys: Sequence[str]) -> list[tuple[Fact, ...]]:
        return await self._run.fact_lists(keys)

    async def write(self, worker: str, number: int, writes: Sequence[Write]) -> frozenset[str]:
        refused: set[str] = set()
        listed = batches(writes)
        for remaining, part in zip(range(len(listed) - 1, -1, -1), listed, strict=True):
            batch = (worker, number, remaining, " ".join(map(str, part.usage.counts)))
            found = await self._run.script(lua_work.WRITE, *batch, *part.arguments)
            refused |= part.refused
            refused.update(key.decode() for key in found)
        return frozenset(refused)

    async def spent(self) -> Usage:
        counts = await self._connection.call("HGET", self._run.key("state"), "spent")
        return Usage.of_counts(list(map(int, counts.split()))) if counts else NO_USAGE

    async def position(self, *, completions: bool = True) -> Cursor:
        streams = [("XREVRANGE", self._run.key(name), "+", "-", "COUNT", 1) for name in _UPDATE_STREAMS]
        last = [rows[0][0].decode() if rows else "0-0" for rows in await self._connection.pipeline(streams)]
        return tuple(last) if completions else (_NOT_READ, _NOT_READ, last[-1])

    async def poll(self, after: Cursor, *, wait: float) -> Updates:
        deadline = aio.now() + wait
        positions = {name: index for name, index in zip(_UPDATE_STREAMS, after, strict=True) if index != _NOT_READ}
        rows_by_stream: dict[str, list[Any]] = {name: [] for name in _UPDATE_STREAMS}
        is_all = False
        if (pause := min(self._next_poll, deadline) - aio.now()) > 0:
            await asyncio.sleep(pause)
        while not is_all:
            left = 0.0 if any(rows_by_stream.values()) else deadline - aio.now()
            found = await self._run.streams(positions, _PAGE, left)
            for name, rows in found.items():
                rows_by_stream[name] += rows
                positions[name] = rows[-1][0].decode()
            is_all = all(len(rows) < _PAGE for rows in found.values()) and (left <= 0 or bool(found))
            if not found:
                await self._check()
        self._next_poll = aio.now() + _POLL_INTERVAL
        return _updates(tuple(positions.get(name, _NOT_READ) for name in _UPDATE_STREAMS), rows_by_stream)

    async def publish(self, data: bytes, *, to_workers: bool = True) -> None:
        await self._run.run_idempotent(lua_documents.PUBLISH, _NEWS if to_workers else _EVENTS, data)

    async def claim(self, name: str, worker: str) -> bytes | bool:
        found = await self._calls.apply(CallChange(name, worker))
        return found if isinstance(found, bytes) else bool(found)

    async def complete_call(self, name: str, worker: str, outcome: bytes | None, *, ttl: float) -> None:
        ttl_millis = -1 if math.isinf(ttl) else millis(ttl)
        releases = outcome is None or ttl <= 0
        await self._calls.apply(CallChange(name, worker, 0 if releases else ttl_millis, outcome or b""))

    async def _change_calls(self, worker: str, changes: Sequence[CallChange]) -> list[bytes | int]:
        arguments = [value for change in changes for value in change.arguments]
        found: list[bytes | int] = await self._run.script(lua_documents.CALLS, worker, *arguments)
        return found

    async def reserve_rate(self, name: str, *, interval: float, ahead: float) -> float:
        return (
            int(
                await self._run.run_idempotent(
                    lua_documents.RESERVE_RATE, name, round(interval * 1e6), round(ahead * 1e6)
                )
            )
            / 1e6
        )

    async def acquire_permit(self, name: str, worker: str, limit: int) -> bool:
        return bool(await self._run.run_idempotent(lua_permits.ACQUIRE_PERMIT, name, worker, limit))

    async def release_permit(self, name: str, worker: str) -> None:
        await self._run.run_idempotent(lua_permits.RELEASE_PERMIT, name, worker, permit_update(name))

    async def _register(self) -> None:
        if not self._is_registered:
            await self._connection.call("SADD", _RUNS, self._name)
            self._is_registered = True

    async def _check(self) -> None:
        """Raises StoreError if the server has lost the run: a poll would wait forever."""
        if (
            self._creation_mark is not None
            and await self._connection.call("HGET", self._run.key("state"), "born") != self._creation_mark
        ):
            raise self._run.lost()
        if self._has_work and not await self._connection.call("HEXISTS", self._run.key("state"), "born"):
            raise self._run.lost()


async def runs_known(url: str, *, retry_seconds: float = _RETRY_SECONDS_AT_OPEN) -> list[str]:
    """Names of the runs on a server, sorted. Raises SpecError and StoreError."""
    connection = _connect(url, retry_seconds)
    try:
        return sorted(run.decode() for run in await connection.call("SMEMBERS", _RUNS))
    finally:
        await connection.aclose()


def _connect(url: str, retry_seconds: float) -> "RedisConnection":
    try:
        from .redis_connection import RedisConnection
    except ImportError as error:
        raise SpecError("store='redis://...' needs an extra: pip install 'batch-agent[redis]'.") from error
    return RedisConnection(url, retry_seconds)


def _read_lease(row: bytes) -> tuple[Job, int, int, int]:
    """A job, its token, its attempts, and the number of its entries with facts."""
    numbers, _, job = row.partition(b"\n")
    token, attempts, entries = map(int, numbers.split())
    return decode_job(job), token, attempts, entries


def _updates(after: Cursor, rows_by_stream: Mapping[str, Sequence[Any]]) -> Updates:
    items = [item for name in (_EVENTS, _NEWS) for _, fields in rows_by_stream[name] for item in fields.items()]
    return Updates(
        after,
        tuple(
            decode_completion(line)
            for _, fields in rows_by_stream["ended"]
            for lines in fields.values()
            for line in lines.splitlines()
        ),
        tuple(data.decode() for kind, data in items if kind == b"landed"),
        tuple(data for kind, data in items if kind == b"told"),
    )


def _flat(pairs: Sequence[tuple[str, bytes | int]]) -> Iterator[bytes | str | int]:
    for key, value in pairs:
        yield key
        yield value


def _pairs(flat: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _no_bytes(_: object) -> int:
    return 0
