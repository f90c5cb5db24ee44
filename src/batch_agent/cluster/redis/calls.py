"""Tool calls, rates and permits in Redis."""

import math
from collections.abc import Sequence

import orjson

from ...core.coordinator import permit_update
from .call_batches import CallBatches, CallChange
from .keyspace import RedisKeyspace, millis
from .lua.calls import ACQUIRE_PERMIT, CALLS, RELEASE_PERMIT, RESERVE_RATE


class RedisCallTable:
    """Tool calls of a run. Claims and outcomes are batched."""

    def __init__(self, keyspace: RedisKeyspace) -> None:
        self._keyspace = keyspace
        self._batches = CallBatches(self._send)

    async def claim(self, name: str, worker: str) -> bytes | bool:
        found = await self._batches.apply(CallChange(name, worker))
        return found if isinstance(found, bytes) else bool(found)

    async def complete(self, name: str, worker: str, outcome: bytes | None, *, ttl: float) -> None:
        ttl_millis = -1 if math.isinf(ttl) else millis(ttl)
        releases = outcome is None or ttl <= 0
        await self._batches.apply(CallChange(name, worker, 0 if releases else ttl_millis, outcome or b""))

    async def reserve_rate(self, name: str, *, interval: float, ahead: float) -> float:
        micros = round(interval * 1e6), round(ahead * 1e6)
        return int(await self._keyspace.run_idempotent(RESERVE_RATE, name, *micros)) / 1e6

    async def acquire_permit(self, name: str, worker: str, limit: int) -> bool:
        return bool(await self._keyspace.run_idempotent(ACQUIRE_PERMIT, name, worker, limit))

    async def release_permit(self, name: str, worker: str) -> None:
        await self._keyspace.run_idempotent(RELEASE_PERMIT, name, worker, permit_update(name))

    async def _send(self, worker: str, changes: Sequence[CallChange]) -> list[bytes | int]:
        listed = orjson.dumps([change.header for change in changes])
        outcomes = b"".join(change.outcome for change in changes)
        found: list[bytes | int] = await self._keyspace.script(CALLS, worker, listed, outcomes)
        return found
