"""One run in a Redis server: the keys that are its own, and its scripts.

Calls under way that must not be done twice.
"""

import itertools
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...core.errors import StoreError
from ...core.facts import Fact
from .lua_common import FAR, LuaScript
from .write_batches import decode_fact

if TYPE_CHECKING:
    from .connection import RedisConnection


class IdempotencySlots:
    """Where calls under way find what came of them in the server, if they must be repeated."""

    def __init__(self) -> None:
        self._name = secrets.token_hex(8)
        self._made = itertools.count(1)
        self._numbers = itertools.count(1)
        self._free: list[str] = []

    @contextmanager
    def taken(self) -> Iterator[tuple[str, int]]:
        """A place, and the number of the call. A call that was given up may arrive still: its place is not used any
        more."""
        place = self._free.pop() if self._free else f"{self._name}.{next(self._made)}"
        yield place, next(self._numbers)
        self._free.append(place)


_LONGEST_BLOCK = 5.0
"""Seconds that one command waits."""


class RedisKeyspace:
    """Reads and changes what is under the prefix. Raises StoreError, one that says so where the run is lost."""

    def __init__(self, link: "RedisConnection", name: str, prefix: str) -> None:
        self.prefix = prefix
        self._link = link
        self._name = name
        self._places = IdempotencySlots()

    def key(self, name: str) -> str:
        return self.prefix + name

    async def script(self, script: LuaScript, *values: bytes | str | int) -> Any:
        """One that may be repeated."""
        with self._seeing_loss():
            return await self._link.run(script, self.prefix, lambda _: values)

    async def once(self, script: LuaScript, *values: bytes | str | int) -> Any:
        """One that finds out by itself whether it was run before."""
        with self._seeing_loss(), self._places.taken() as (place, number):
            return await self._link.run(script, self.prefix, lambda again: (place, number, int(again), *values))

    async def streams(self, after: Mapping[str, str], most: int, wait: float) -> dict[str, list[Any]]:
        """What is in the streams after these places; none is empty. Waits for a while, but maybe not all of it."""
        names = [self.key(name) for name in after]
        block = ("BLOCK", millis(min(wait, _LONGEST_BLOCK))) if wait > 0 else ()
        found = await self._link.wait("XREAD", "COUNT", most, *block, "STREAMS", *names, *after.values())
        return {name.decode().removeprefix(self.prefix): rows for name, rows in found}

    async def stories(self, keys: Sequence[bytes]) -> list[tuple[Fact, ...]]:
        found = await self._link.together([("LRANGE", self.key("facts:").encode() + key, 0, -1) for key in keys])
        return [self._facts(key, data) for key, data in zip(keys, found, strict=True)]

    def lost(self) -> StoreError:
        return StoreError(
            f"Redis at {self._link.shown} has lost run {self._name!r}: somebody removed it, or the server was "
            "restarted without an append-only file, or it evicts keys. Set appendonly yes and maxmemory-policy "
            "noeviction, and run again."
        )

    @contextmanager
    def _seeing_loss(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            raise self.lost() if "NOGROUP" in str(error) else error from error

    def _facts(self, key: bytes, listed: Sequence[bytes]) -> tuple[Fact, ...]:
        try:
            return tuple(map(decode_fact, listed))
        except ValueError as error:
            where = f"Run {self._name!r} in Redis at {self._link.shown}"
            raise StoreError(f"{where}: the facts of agent {key.decode()} cannot be read: {error}") from error


def millis(seconds: float) -> int:
    """As a server takes them: at least one, and no more than it can count."""
    return max(1, round(min(seconds, FAR) * 1_000))
