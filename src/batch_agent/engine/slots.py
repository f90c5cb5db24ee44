"""Slots: the right to a request in flight. Waiting costs nothing; nobody polls."""

import asyncio

from ..core.events import Event, LimitChanged
from ..core.interfaces import EventSink
from ..schedule.admission import Admission, Rank, Ticket
from ..schedule.limit import InflightLimit


class Slots:
    """Grants slots in the order of their rank, and moves the limit as the backend answers."""

    def __init__(self, limit: InflightLimit, events: EventSink | None = None) -> None:
        self._limit = limit
        self._admission = Admission(limit.current)
        self._waiters: dict[Ticket, asyncio.Future[None]] = {}
        self._events = events

    @property
    def limit(self) -> int:
        return self._admission.limit

    async def acquire(self, rank: Rank) -> "HeldSlot":
        if not self._admission.take():
            await self._wait(rank)
        return HeldSlot(self)

    def succeeded(self) -> None:
        """A request went well."""
        binds = self._admission.in_use >= self._admission.limit
        self._resize(self._limit.succeeded(limit_binds=binds), "room")

    def refused(self, retry_after: float | None) -> None:
        """The server asked for less."""
        now = asyncio.get_running_loop().time()
        self._resize(self._limit.refused(now, retry_after), "rate limited")

    async def _wait(self, rank: Rank) -> None:
        ticket = self._admission.wait(rank)
        granted = asyncio.get_running_loop().create_future()
        self._waiters[ticket] = granted
        try:
            await granted
        except asyncio.CancelledError:
            # A grant and a cancellation may cross, in either order: who is no longer waiting was granted.
            if self._waiters.pop(ticket, None) is None:
                self._give_back()
            else:
                self._admission.leave(ticket)
            raise

    def _give_back(self) -> None:
        self._wake(self._admission.release())

    def _wake(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            waiter = self._waiters.pop(ticket)
            if not waiter.done():
                waiter.set_result(None)

    def _resize(self, limit: int | None, reason: str) -> None:
        if limit is None:
            return
        self._wake(self._admission.resize(limit))
        if self._events is not None:
            change: Event = LimitChanged(limit, reason)
            self._events.emit(change)


class HeldSlot:
    """A granted slot. Releasing it twice is harmless."""

    __slots__ = ("_slots",)

    def __init__(self, slots: Slots) -> None:
        self._slots: Slots | None = slots

    def release(self) -> None:
        if self._slots is not None:
            slots, self._slots = self._slots, None
            slots._give_back()
