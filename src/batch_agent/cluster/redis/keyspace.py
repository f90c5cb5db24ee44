"""Keys and scripts of a run on a Redis server."""

import itertools
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...core.errors import StoreError
from .lua.common import LOST, MAX_LEASE, MAX_UPDATES, LuaScript

if TYPE_CHECKING:
    from .redis_connection import RedisConnection

PREFIX = "batch-agent:"
"""Prefix of all keys."""


class IdempotencySlots:
    """Slots on the server that store the result of a call, for repetitions of the call to find."""

    def __init__(self) -> None:
        self._name = secrets.token_hex(8)
        self._slot_numbers = itertools.count(1)
        self._numbers = itertools.count(1)
        self._free: list[str] = []

    @contextmanager
    def acquire(self) -> Iterator[tuple[str, int]]:
        """A slot and the number of the call. The slot of a cancelled call is not reused, because the call may still
        arrive."""
        slot = self._free.pop() if self._free else f"{self._name}.{next(self._slot_numbers)}"
        yield slot, next(self._numbers)
        self._free.append(slot)


_MAX_BLOCK = 5.0
"""Maximum seconds that a command blocks."""


class RedisKeyspace:
    """Reads and changes keys under the prefix. Raises StoreError, with a message of its own if the run is lost."""

    def __init__(self, connection: "RedisConnection", name: str) -> None:
        """`name`: name of the run."""
        self.connection = connection
        self.name = name
        self.prefix = f"{PREFIX}{{{name}}}:"
        self._slots = IdempotencySlots()

    def key(self, name: str) -> str:
        return self.prefix + name

    async def script(self, script: LuaScript, *values: bytes | str | int) -> Any:
        """Runs a script whose repetition does no harm."""
        with self._detect_loss():
            return await self.connection.run(script, self.prefix, lambda _: values)

    async def run_idempotent(self, script: LuaScript, *values: bytes | str | int) -> Any:
        """Runs a script that detects a repetition by itself."""
        with self._detect_loss(), self._slots.acquire() as (slot, number):
            return await self.connection.run(script, self.prefix, lambda again: (slot, number, int(again), *values))

    async def add_message(self, stream: str, data: bytes, repeat: LuaScript) -> None:
        """Adds a message to a stream. `repeat`: the script to use after a lost reply, which adds the message unless it
        is there."""
        with self._detect_loss(), self._slots.acquire() as (slot, number):
            mark = f"{slot} {number}"
            add = ("XADD", self.key(stream), "MAXLEN", "~", MAX_UPDATES, "*", "told", data, "mark", mark)
            await self.connection.run(repeat, self.prefix, lambda _: (stream, mark, data), first=add)

    async def streams(self, after: Mapping[str, str], count: int, wait: float) -> dict[str, list[Any]]:
        """Entries of the streams after these ids, without empty streams. May wait for less than `wait` seconds."""
        names = [self.key(name) for name in after]
        block = ("BLOCK", millis(min(wait, _MAX_BLOCK))) if wait > 0 else ()
        found = await self.connection.wait("XREAD", "COUNT", count, *block, "STREAMS", *names, *after.values())
        return {name.decode().removeprefix(self.prefix): rows for name, rows in found}

    async def scan(self, name: str, count: int) -> AsyncIterator[list[bytes]]:
        """All keys that begin with this name, possibly with duplicates."""
        pattern, cursor = _starts_with(self.key(name)), 0
        while True:
            cursor, keys = await self.connection.call("SCAN", cursor, "MATCH", pattern, "COUNT", count)
            yield keys
            if int(cursor) == 0:
                return

    async def scan_state(self, kind: str, count: int) -> AsyncIterator[dict[str, bytes]]:
        """All fields of the state that begin with `kind:`, without that prefix and possibly with duplicates."""
        pattern, cursor = _starts_with(f"{kind}:"), 0
        while True:
            cursor, found = await self.connection.call(
                "HSCAN", self.key("state"), cursor, "MATCH", pattern, "COUNT", count
            )
            yield {field.decode().removeprefix(f"{kind}:"): value for field, value in found.items()}
            if int(cursor) == 0:
                return

    async def read_state(self, fields: Sequence[str]) -> list[bytes | None]:
        found: list[bytes | None] = await self.connection.call("HMGET", self.key("state"), *fields) if fields else []
        return found

    @property
    def title(self) -> str:
        """Name and place of the run, for messages."""
        return f"Run {self.name!r} in Redis at {self.connection.display_url}"

    def lost(self) -> StoreError:
        return StoreError(
            f"Redis at {self.connection.display_url} has lost run {self.name!r}: it was deleted, or the server was "
            "restarted without an append-only file, or it evicts keys. Set appendonly yes and maxmemory-policy "
            "noeviction, and run again."
        )

    @contextmanager
    def _detect_loss(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            raise self.lost() if LOST in str(error) else error from error


def _starts_with(text: str) -> str:
    """Glob pattern of the names that begin with this text."""
    return "".join(f"\\{letter}" if letter in "*?[]^\\" else letter for letter in text) + "*"


def millis(seconds: float) -> int:
    """Milliseconds, limited to what the scripts accept: at least 1, at most MAX_LEASE."""
    return max(1, round(min(seconds, MAX_LEASE) * 1_000))
