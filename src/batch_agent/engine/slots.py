"""Slots: the right to a request in flight. Waiting costs nothing; nobody polls."""

import asyncio

from ..core.events import Event, LimitChanged, Paused
from ..core.interfaces import EventSink
from ..schedule.admission import Admission, Rank, Ticket
from ..schedule.limit import InflightLimit

_PAUSE = 0.5
_LONGEST_PAUSE = 300.0
"""Who is asked to wait for longer gives up instead, and so do the others, each in its turn."""


class Slots:
    """Grants slots in the order of their rank, and moves the limit as the backend answers."""

    def __init__(self, limit: InflightLimit, events: EventSink | None = None) -> None:
        self._limit = limit
        self._admission = Admission(limit.current)
        self._waiters: dict[Ticket, asyncio.Future[None]] = {}
        self._pause: asyncio.TimerHandle | None = None
        self._events = events

    @property
    def limit(self) -> int:
        return self._limit.current

    async def acquire(self, rank: Rank) -> "HeldSlot":
        if not self._admission.take():
            await self._wait(rank)
        return HeldSlot(self)

    def succeeded(self) -> None:
        """A request went well."""
        binds = self._admission.in_use >= self._limit.current
        self._resize(self._limit.succeeded(limit_binds=binds), "room")

    def refused(self, retry_after: float | None) -> None:
        """The server asked for less. Nobody is sent to it before the pause that it asked for, or a short one, is over:
        a refusal is quick, and would otherwise let every waiting agent run into the next one."""
        now = asyncio.get_running_loop().time()
        self._resize(self._limit.refused(now, retry_after), "rate limited")
        self.hold(_PAUSE if retry_after is None or retry_after > _LONGEST_PAUSE else retry_after, "rate limited")

    def hold(self, seconds: float, reason: str) -> None:
        """Grants nothing for so long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        if self._pause is None:
            self._emit(Paused(seconds, reason))
        else:
            until = max(until, self._pause.when())
            self._pause.cancel()
        self._pause = loop.call_at(until, self._go_on)
        self._admission.resize(0)

    def _go_on(self) -> None:
        self._pause = None
        self._wake(self._admission.resize(self._limit.current))

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
        if self._pause is None:
            self._wake(self._admission.resize(limit))
        self._emit(LimitChanged(limit, reason))

    def _emit(self, event: Event) -> None:
        if self._events is not None:
            self._events.emit(event)


class HeldSlot:
    """A granted slot. Releasing it twice is harmless."""

    __slots__ = ("_slots",)

    def __init__(self, slots: Slots) -> None:
        self._slots: Slots | None = slots

    def release(self) -> None:
        if self._slots is not None:
            slots, self._slots = self._slots, None
            slots._give_back()
