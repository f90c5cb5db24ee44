"""Tool calls, rates and permits in memory."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from ... import aio
from ...core.coordinator import permit_update
from .updates import MemoryUpdateStream


@dataclass(slots=True)
class _Call:
    worker: str
    outcome: bytes | None = None
    expires: float = 0.0


class MemoryCallTable:
    """Claims, outcomes and permits of tool calls, with the counts behind the limits of tools."""

    def __init__(self, is_alive: Callable[[str], bool], updates: MemoryUpdateStream) -> None:
        """`is_alive`: tells whether a worker is alive."""
        self._is_alive = is_alive
        self._updates = updates
        self._calls: dict[str, _Call] = {}
        self._rate_slots: dict[str, float] = {}
        self._permits: dict[str, Counter[str]] = {}
        """For each name, the number of permits that each worker holds."""
        self._wanted: set[str] = set()
        """Names of permits for which a worker waits."""

    def clear(self) -> None:
        """Deletes the calls."""
        self._calls.clear()

    async def claim(self, name: str, worker: str) -> bytes | bool:
        call = self._calls.get(name)
        if call is not None:
            if call.outcome is not None and call.expires > aio.now():
                return call.outcome
            if call.outcome is None and call.worker != worker and self._is_alive(call.worker):
                return False
        self._calls[name] = _Call(worker)
        return True

    async def complete(self, name: str, worker: str, outcome: bytes | None, *, ttl: float) -> None:
        call = self._calls.get(name)
        if call is None or call.worker != worker or call.outcome is not None:
            return
        if outcome is None:
            del self._calls[name]
        else:
            call.outcome, call.expires = outcome, aio.now() + ttl
        self._updates.add_completed_call(name)

    async def reserve_rate(self, name: str, *, interval: float, ahead: float) -> float:
        now = aio.now()
        due = max(self._rate_slots.get(name, now), now)
        self._rate_slots[name] = due + interval
        return max(0.0, due - ahead - now)

    async def acquire_permit(self, name: str, worker: str, limit: int) -> bool:
        held = self._permits.setdefault(name, Counter())
        for other in [other for other in held if other != worker and not self._is_alive(other)]:
            del held[other]
        if held.total() >= limit:
            self._wanted.add(name)
            return False
        held[worker] += 1
        return True

    async def release_permit(self, name: str, worker: str) -> None:
        held = self._permits.get(name, Counter())
        if held[worker] > 1:
            held[worker] -= 1
        else:
            del held[worker]
        if name in self._wanted:
            self._wanted.discard(name)
            self._updates.add_completed_call(permit_update(name))
