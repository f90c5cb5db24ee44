"""A hub in Redis: it outlives the workers, and they may be anywhere. Needs the extra `redis`."""

import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ... import aio
from ...core.agent_config import Job
from ...core.coordinator import Completion, Cursor, Document, Lease, Updates, Write
from ...core.errors import SpecError
from ...core.facts import Fact
from ...core.requests import NO_USAGE, Usage
from ...store.codec import decode_completion, decode_job, encode_job
from . import lua_documents as sharing
from . import lua_work as scripts
from .durability_check import warn_if_not_durable
from .keyspace import RedisKeyspace, millis
from .write_batches import MOST_AT_ONCE, batches, split_batches

if TYPE_CHECKING:
    from .connection import RedisConnection

PREFIX = "batch-agent:"
_RUNS = f"{PREFIX}runs"
_PATIENCE = 60.0
_PATIENCE_AT_FIRST = 10.0
"""Whoever has mistyped a host should not wait for long."""
_LOOKS = 3
"""A worker that waits for work looks so often for leases that have run out, in the time that one lasts: more often than
is taken for silence."""
_PAGE = 1_000
_NEWS = ("ended", "news")
"""The streams of news, as they are in a cursor."""
_NOT_READ = "-"
"""In a cursor: the stream is not read."""


class RedisCoordinator:
    """`store="redis://..."`: everything of a run is in keys that begin with `batch-agent:{RUN}:`, as JSON and bytes."""

    def __init__(self, url: str, run: str, *, patience: float = _PATIENCE) -> None:
        """`patience`: seconds for which a server that is away is tried again. Raises SpecError."""
        if not run or not set(run).isdisjoint("{}"):
            raise SpecError(f"{run!r} cannot be the name of a run: it is empty, or has a brace in it.")
        self._link = _linked(url, patience)
        self._name = run
        self._run = RedisKeyspace(self._link, run, f"{PREFIX}{{{run}}}:")
        self._patience = patience
        self._cursor: bytes | str = "0-0"
        """Where leases that have run out are looked for."""
        self._is_known = False
        """Whether the run is among those that the server knows."""
        self._has_work = False
        """Whether there was any: then the server must not forget it."""
        self._born: bytes | None = None
        """The run's birth mark, for one who posts: with another one it is another run, and what was posted is gone."""

    async def open(self) -> None:
        try:
            await self._link.call("PING", patience=min(self._patience, _PATIENCE_AT_FIRST))
            await warn_if_not_durable(self._link)
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        await self._link.aclose()

    async def delete_run(self) -> None:
        pattern = "".join(f"\\{letter}" if letter in "*?[]^\\" else letter for letter in self._run.prefix) + "*"
        cursor: Any = 0
        while True:
            cursor, keys = await self._link.call("SCAN", cursor, "MATCH", pattern, "COUNT", _PAGE)
            if keys:
                await self._link.call("UNLINK", *keys)
            if int(cursor) == 0:
                break
        await self._link.call("SREM", _RUNS, self._name)
        self._is_known = self._has_work = False
        self._born = None

    async def read(self, name: str) -> Document:
        data, (seconds, micros) = await self._link.together([("GET", self._run.key(f"document:{name}")), ("TIME",)])
        return Document(data, int(seconds) + int(micros) / 1e6)

    async def compare_and_set(self, name: str, old: bytes | None, new: bytes | None) -> bool:
        await self._be_known()
        values = (name, int(old is not None), old or b"", int(new is not None), new or b"")
        return bool(await self._run.once(sharing.SWAP, *values))

    async def submit(self, jobs: Sequence[Job], *, retry_failed: bool) -> dict[str, Completion]:
        await self._be_known()
        ended: dict[str, Completion] = {}
        encoded = ((job.key, encode_job(job)) for job in jobs)
        for some in split_batches(encoded, lambda each: len(each[1])):
            born, *found = await self._run.script(scripts.POST, int(retry_failed), secrets.token_hex(8), *_flat(some))
            if self._born not in (None, born):
                raise self._run.lost()
            self._born = born
            ended.update((key.decode(), decode_completion(data)) for key, data in _pairs(found))
        return ended

    async def pending_count(self) -> int:
        return int(await self._link.call("HLEN", self._run.key("agents")))

    async def lease(self, worker: str, max_jobs: int, *, ttl: float, wait: float) -> list[Lease]:
        deadline = aio.now() + wait
        while True:
            leases, bell = await self._lease(worker, min(max_jobs, MOST_AT_ONCE), ttl)
            if leases or (left := deadline - aio.now()) <= 0:
                return leases
            await self._run.streams({"bell": bell}, 1, min(left, ttl / _LOOKS))

    async def _lease(self, worker: str, max_jobs: int, ttl: float) -> tuple[list[Lease], str]:
        """And the last bell, if there are none."""
        asked, had_work = (worker, max_jobs, millis(ttl), self._cursor), self._has_work
        self._cursor, bell, found = await self._run.once(scripts.LEASE, *asked)
        if bell is not None:
            self._has_work = True
        elif had_work:
            raise self._run.lost()
        rows = [found[place : place + 5] for place in range(0, len(found), 5)]
        told = [row[0] for row in rows if row[4]]
        stories = dict(zip(told, await self._run.stories(told), strict=True))
        leases = [Lease(decode_job(job), int(token), stories.get(key, ()), times) for key, job, token, times, _ in rows]
        return leases, "0-0" if bell is None else bell.decode()

    async def renew(self, worker: str, tokens: Mapping[str, int], *, ttl: float) -> frozenset[str]:
        lost: set[bytes] = set()
        for some in split_batches(tokens.items(), _nothing) if tokens else [[]]:
            lost.update(await self._run.script(scripts.RENEW, worker, millis(ttl), *_flat(some)))
        return frozenset(key.decode() for key in lost)

    async def release(self, worker: str, tokens: Mapping[str, int]) -> None:
        for some in split_batches(tokens.items(), _nothing):
            await self._run.script(scripts.GIVE_BACK, worker, *_flat(some))

    async def leave(self, worker: str) -> None:
        await self._run.script(scripts.LEAVE, worker)

    async def facts(self, key: str) -> tuple[Fact, ...]:
        return (await self._run.stories([key.encode()]))[0]

    async def write(self, worker: str, number: int, writes: Sequence[Write]) -> frozenset[str]:
        refused: set[str] = set()
        listed = batches(writes)
        for rest, piece in zip(range(len(listed) - 1, -1, -1), listed, strict=True):
            usage = piece.usage
            batch = (worker, number, rest, usage.input, usage.cached, usage.output)
            found = await self._run.script(scripts.WRITE, *batch, *piece.arguments)
            refused |= piece.refused
            refused.update(key.decode() for key in found)
        return frozenset(refused)

    async def spent(self) -> Usage:
        records = await self._link.call("HVALS", self._run.key("workers"))
        return sum((Usage(*map(int, record.partition(b"\n")[0].split()[3:])) for record in records), NO_USAGE)

    async def position(self, *, completions: bool = True) -> Cursor:
        streams = [("XREVRANGE", self._run.key(name), "+", "-", "COUNT", 1) for name in _NEWS]
        last = [rows[0][0].decode() if rows else "0-0" for rows in await self._link.together(streams)]
        return tuple(last) if completions else (_NOT_READ, *last[1:])

    async def poll(self, after: Cursor, *, wait: float) -> Updates:
        deadline = aio.now() + wait
        at = {name: place for name, place in zip(_NEWS, after, strict=True) if place != _NOT_READ}
        told: dict[str, list[Any]] = {name: [] for name in _NEWS}
        is_all = False
        while not is_all:
            left = 0.0 if any(told.values()) else deadline - aio.now()
            found = await self._run.streams(at, _PAGE, left)
            for name, rows in found.items():
                told[name] += rows
                at[name] = rows[-1][0].decode()
            is_all = all(len(rows) < _PAGE for rows in found.values()) and (left <= 0 or bool(found))
            if not found:
                await self._check()
        return _news(tuple(at.get(name, _NOT_READ) for name in _NEWS), *told.values())

    async def publish(self, data: bytes) -> None:
        await self._run.once(sharing.TELL, data)

    async def claim(self, name: str, worker: str) -> bytes | bool:
        found: bytes | int = await self._run.script(sharing.CLAIM, name, worker)
        return found if isinstance(found, bytes) else bool(found)

    async def complete_call(self, name: str, worker: str, outcome: bytes | None, *, ttl: float) -> None:
        good = -1 if math.isinf(ttl) else millis(ttl)
        is_free = outcome is None or ttl <= 0
        await self._run.script(sharing.LAND, name, worker, 0 if is_free else good, outcome or b"")

    async def reserve_rate(self, name: str, *, interval: float, ahead: float) -> float:
        return int(await self._run.once(sharing.TURN, name, round(interval * 1e6), round(ahead * 1e6))) / 1e6

    async def _be_known(self) -> None:
        if not self._is_known:
            await self._link.call("SADD", _RUNS, self._name)
            self._is_known = True

    async def _check(self) -> None:
        """Raises StoreError when the server has forgotten the run: whoever waits for news would wait for ever."""
        if self._born is not None and await self._link.call("HGET", self._run.key("meta"), "born") != self._born:
            raise self._run.lost()
        if self._has_work and not await self._link.call("EXISTS", self._run.key("work")):
            raise self._run.lost()


async def runs_known(url: str, *, patience: float = _PATIENCE_AT_FIRST) -> list[str]:
    """The runs that a server has, in order. Raises SpecError and StoreError."""
    link = _linked(url, patience)
    try:
        return sorted(run.decode() for run in await link.call("SMEMBERS", _RUNS))
    finally:
        await link.aclose()


def _linked(url: str, patience: float) -> "RedisConnection":
    try:
        from .connection import RedisConnection
    except ImportError as error:
        raise SpecError("A store in Redis needs a package: pip install 'batch-agent[redis]'.") from error
    return RedisConnection(url, patience)


def _news(after: Cursor, ended: Sequence[Any], other: Sequence[Any]) -> Updates:
    items = [item for _, fields in other for item in fields.items()]
    return Updates(
        after,
        tuple(decode_completion(data) for _, fields in ended for data in fields.values()),
        tuple(data.decode() for kind, data in items if kind == b"landed"),
        tuple(data for kind, data in items if kind == b"told"),
    )


def _flat(pairs: Sequence[tuple[str, bytes | int]]) -> Iterator[bytes | str | int]:
    for key, value in pairs:
        yield key
        yield value


def _pairs(flat: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _nothing(_: object) -> int:
    return 0
