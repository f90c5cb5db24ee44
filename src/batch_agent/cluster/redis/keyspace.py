"""Keys and scripts of one run in a Redis server."""

import itertools
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import orjson

from ...core.errors import StoreError
from ...core.facts import Fact
from .lua_common import LOST, MAX_LEASE, OLD_LAYOUT, LuaScript
from .lua_work import FACTS
from .write_batches import decode_facts, split_batches

if TYPE_CHECKING:
    from .redis_connection import RedisConnection


class IdempotencySlots:
    """Slots in the server where repeated calls find the result of their first execution."""

    def __init__(self) -> None:
        self._name = secrets.token_hex(8)
        self._slot_numbers = itertools.count(1)
        self._numbers = itertools.count(1)
        self._free: list[str] = []

    @contextmanager
    def acquire(self) -> Iterator[tuple[str, int]]:
        """A slot, and the number of the call. The slot of a cancelled call is not reused, as the call may still
        arrive."""
        slot = self._free.pop() if self._free else f"{self._name}.{next(self._slot_numbers)}"
        yield slot, next(self._numbers)
        self._free.append(slot)


_MAX_BLOCK = 5.0
"""Seconds that one command blocks."""
_MAX_HISTORIES = 64
"""Agents whose facts are read with one command."""


class RedisKeyspace:
    """Reads and changes keys under the prefix. Raises StoreError, with its own message if the run is lost."""

    def __init__(self, connection: "RedisConnection", name: str, prefix: str) -> None:
        self.prefix = prefix
        self._connection = connection
        self._name = name
        self._slots = IdempotencySlots()

    def key(self, name: str) -> str:
        return self.prefix + name

    async def script(self, script: LuaScript, *values: bytes | str | int) -> Any:
        """Runs a script that may be repeated."""
        with self._detect_loss():
            return await self._connection.run(script, self.prefix, lambda _: values)

    async def run_idempotent(self, script: LuaScript, *values: bytes | str | int) -> Any:
        """Runs a script that detects whether it ran before."""
        with self._detect_loss(), self._slots.acquire() as (slot, number):
            return await self._connection.run(script, self.prefix, lambda again: (slot, number, int(again), *values))

    async def streams(self, after: Mapping[str, str], count: int, wait: float) -> dict[str, list[Any]]:
        """Entries of the streams after these ids; only streams with entries. May wait for less than `wait` seconds."""
        names = [self.key(name) for name in after]
        block = ("BLOCK", millis(min(wait, _MAX_BLOCK))) if wait > 0 else ()
        found = await self._connection.wait("XREAD", "COUNT", count, *block, "STREAMS", *names, *after.values())
        return {name.decode().removeprefix(self.prefix): rows for name, rows in found}

    async def scan(self, name: str, count: int) -> AsyncIterator[list[bytes]]:
        """All keys that begin with this name, some perhaps twice."""
        pattern, cursor = _starts_with(self.key(name)), 0
        while True:
            cursor, keys = await self._connection.call("SCAN", cursor, "MATCH", pattern, "COUNT", count)
            yield keys
            if int(cursor) == 0:
                return

    async def scan_state(self, kind: str, count: int) -> AsyncIterator[dict[str, bytes]]:
        """All fields of the state that begin with `kind:`, without it, some perhaps twice."""
        pattern, cursor = _starts_with(f"{kind}:"), 0
        while True:
            cursor, found = await self._connection.call(
                "HSCAN", self.key("state"), cursor, "MATCH", pattern, "COUNT", count
            )
            yield {field.decode().removeprefix(f"{kind}:"): value for field, value in found.items()}
            if int(cursor) == 0:
                return

    async def read_state(self, fields: Sequence[str]) -> list[bytes | None]:
        found: list[bytes | None] = await self._connection.call("HMGET", self.key("state"), *fields) if fields else []
        return found

    async def fact_lists(self, keys: Sequence[str]) -> list[tuple[Fact, ...]]:
        """Facts of each agent or chunk."""
        found = zip(keys, await self.encoded_facts(keys), strict=True)
        return [self._facts(key, encoded) for key, encoded in found]

    async def encoded_facts(self, keys: Sequence[str]) -> list[bytes]:
        """Facts of each agent or chunk, as `split_facts` reads them."""
        found: list[bytes] = []
        for batch in split_batches(keys, len, max_items=_MAX_HISTORIES):
            lengths, facts = await self.script(FACTS, orjson.dumps(batch))
            ends = itertools.accumulate(map(int, lengths.split()), initial=0)
            found += [facts[start:end] for start, end in itertools.pairwise(ends)]
        return found

    def lost(self) -> StoreError:
        return StoreError(
            f"Redis at {self._connection.display_url} has lost run {self._name!r}: it was deleted, or the server was "
            "restarted without an append-only file, or it evicts keys. Set appendonly yes and maxmemory-policy "
            "noeviction, and run again."
        )

    @contextmanager
    def _detect_loss(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            if OLD_LAYOUT in str(error):
                raise StoreError(
                    f"{self._where} was stored by an earlier version of batch_agent. Finish it with that version, or "
                    "use another run_id."
                ) from error
            raise self.lost() if LOST in str(error) else error from error

    def _facts(self, key: str, encoded: bytes) -> tuple[Fact, ...]:
        try:
            return decode_facts(encoded)
        except ValueError as error:
            raise StoreError(f"{self._where}: the facts of agent {key} cannot be read: {error}") from error

    @property
    def _where(self) -> str:
        return f"Run {self._name!r} in Redis at {self._connection.display_url}"


def _starts_with(text: str) -> str:
    """Pattern of names that begin with this text."""
    return "".join(f"\\{letter}" if letter in "*?[]^\\" else letter for letter in text) + "*"


def millis(seconds: float) -> int:
    """Milliseconds as the server accepts them: at least 1, at most MAX_LEASE."""
    return max(1, round(min(seconds, MAX_LEASE) * 1_000))
