"""Slots: the right to a request in flight. Waiting costs nothing; nobody polls."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

from ..core.events import Event, LimitChanged, Paused, Resumed
from ..core.protocols import EventSink, ServerLoad
from ..core.run_reports import LimitChange
from ..schedule.concurrency_limit import InflightLimit, LimitDecision
from ..schedule.endpoint_load import EndpointLoads, EndpointMembership
from ..schedule.fair_share import Demand
from ..schedule.health import Health
from ..schedule.overload_detector import OverloadDetector
from ..schedule.slot_queue import Priority, SlotQueue, Ticket

_PAUSE = 0.5
_BUSY = 0.75
"""Of the limit, in service: then a cut holds the others back for long enough."""
_WORTH_TELLING = 0.1
_LONGEST_PAUSE = 300.0
"""Who is asked to wait for longer gives up instead, and so do the others, each in its turn."""


class Slots:
    """Grants slots in the order of their rank, and moves the limit as the backend answers."""

    def __init__(self, limit: InflightLimit, events: EventSink | None = None) -> None:
        self._limit = limit
        self._admission = SlotQueue(limit.current)
        self._waiters: dict[Ticket, asyncio.Future[None]] = {}
        self._pause: asyncio.TimerHandle | None = None
        self._at_first: int | None = None
        self._bound: int | None = None
        self._first = limit.current
        self._portion: int | None = None
        self.workers = 1
        self._elsewhere = 0
        self._refusals = OverloadDetector()
        self._cut_at: float | None = None
        """When the limit was last cut, until a request that was sent after that is answered."""
        self._events = events
        self._began = asyncio.get_running_loop().time()
        self.history: list[LimitChange] = []
        self.share: SlotShare | None = None
        """Set while prompt pools in this process may use the same endpoints."""

    @property
    def is_full(self) -> bool:
        return self._admission.in_use >= self._admission.limit

    @property
    def in_use(self) -> int:
        return self._admission.in_use

    @property
    def waiting(self) -> int:
        return self._admission.waiting

    @property
    def is_paused(self) -> bool:
        return self._pause is not None

    @property
    def limit(self) -> int:
        return self._limit.current if self._portion is None else min(self._portion, self._limit.current)

    @property
    def _now_allowed(self) -> int:
        allowed = self.limit if self._bound is None else min(self._bound, self.limit)
        if self.share is not None and self.share.membership.is_contended:
            allowed = min(allowed, self.share.allowed())
        return allowed if self._at_first is None else min(self._at_first, allowed)

    def bound(self, most: int | None) -> None:
        """No more than this at once, whatever the limit: more do not fit. None: whatever the limit says."""
        before, self._bound = self._now_allowed, most
        if self._now_allowed != before:
            self._fit()

    def portion(self, most: int | None) -> None:
        """No more than this at once, whatever the limit: the others are for other workers. 0: none for now, and who
        waits keeps its place. None: whatever the limit says."""
        if most != self._portion:
            self._portion = most
            self._fit()

    def demand(self) -> Demand:
        """A fixed limit is one for all workers; one that is found is each worker's own."""
        return Demand(self._first if self._limit.fixed else None, self._admission.in_use, self._admission.waiting > 0)

    def shared(self, workers: int, elsewhere: int) -> None:
        """So many workers use the server, the others with so many requests in flight. A limit that is to be found
        begins with its part of what one worker would begin with; then each finds its own."""
        self.workers, self._elsewhere = workers, elsewhere
        first = max(1, self._first // workers)
        if not (self._limit.fixed or self.history or first == self._limit.current):
            self._limit.current = first
            self._fit()

    async def acquire(self, rank: Priority) -> "HeldSlot":
        if not self._admission.take():
            await self._wait(rank)
        elif self.share is not None and self.share.membership.is_contended:
            self.share.membership.changed()
        return HeldSlot(self)

    def succeeded(self, seconds: float) -> None:
        """A request went well, and took so long."""
        if self._at_first is not None:
            self._at_first = None
            if self._pause is None:
                self._wake(self._admission.resize(self._now_allowed))
                self._emit(Resumed())
        if self._cut_at is not None and asyncio.get_running_loop().time() - seconds >= self._cut_at:
            self._cut_at = None
        binds = self._admission.in_use >= self._limit.current
        self._resize(self._limit.succeeded(seconds, limit_binds=binds))

    def refused(self, retry_after: float | None, request: int, health: Health) -> None:
        """The server sent the request of this number away. That is the request's own affair, to be sent again later,
        unless most of what the server gets goes that way: then it wants less from everybody, and a pause that it asks
        for is everybody's. Without one, a limit below what is in service holds the others back by itself."""
        if not self._refusals.is_news(request):
            return
        self._limit.sent_away()
        if not self._refusals.are_most(request, health.newest):
            return
        if self._portion:  # less than what this worker sends, not than what all may
            self._limit.current = min(self._limit.current, self._portion)
        in_service, now = health.out_before(request), asyncio.get_running_loop().time()
        if self._cut_at is None:  # or else nothing sent since the last cut was answered: no limit helps against that
            self._cut_at = now
            self._resize(self._limit.refused(now, in_service))
        elif retry_after is None:
            in_service = 0
        if retry_after is not None or in_service < _BUSY * self._now_allowed:
            self.hold(_pause(retry_after), "rate limited")

    def looked(self, load: ServerLoad) -> None:
        """The server said how busy it is."""
        own = self._part_of(load)
        self._resize(self._limit.looked(own, self._admission.in_use, asyncio.get_running_loop().time()))

    def _part_of(self, load: ServerLoad) -> ServerLoad:
        """What is this worker's of what the server has to do."""
        if not self._elsewhere:
            return load
        own = max(1, self._admission.in_use)
        part = own / (own + self._elsewhere)
        return replace(load, running=round(part * load.running), waiting=round(part * load.waiting))

    def hold(self, seconds: float, reason: str, *, then: int | None = None) -> None:
        """Grants nothing for so long, and then no more than `then` at once until one goes well."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        self._at_first = then if self._at_first is None else self._at_first
        told_until = loop.time() if self._pause is None else self._pause.when()
        if until > told_until + _WORTH_TELLING:
            self._emit(Paused(seconds, reason))
        if self._pause is not None:
            until = max(until, self._pause.when())
            self._pause.cancel()
        self._pause = loop.call_at(until, self._go_on)
        self._admission.resize(0)

    def _go_on(self) -> None:
        self._pause = None
        self._wake(self._admission.resize(self._now_allowed))
        if self._at_first is None:
            self._emit(Resumed())

    async def _wait(self, rank: Priority) -> None:
        ticket = self._admission.wait(rank)
        granted = asyncio.get_running_loop().create_future()
        self._waiters[ticket] = granted
        if self.share is not None and self.share.membership.is_contended:
            self.share.membership.changed()
        try:
            await granted
        except asyncio.CancelledError:
            # A grant and a cancellation may cross, in either order: who is no longer waiting was granted.
            if self._waiters.pop(ticket, None) is None:
                self._give_back()
            else:
                self._admission.leave(ticket)
                self._tell_clients()
            raise

    def _give_back(self) -> None:
        self._wake(self._admission.release())
        if self.share is not None and self.share.membership.is_contended:
            self.share.membership.changed()

    def _wake(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            waiter = self._waiters.pop(ticket)
            if not waiter.done():
                waiter.set_result(None)

    def _resize(self, change: LimitDecision | None) -> None:
        if change is None:
            return
        self._fit()
        self.history.append(LimitChange(asyncio.get_running_loop().time() - self._began, *change))
        self._emit(LimitChanged(*change))

    def refit(self) -> None:
        """Other clients of the endpoints use more or less, or want more or less."""
        if self._pause is None:
            granted = self._admission.resize(self._now_allowed)
            self._wake(granted)
            if granted:
                self._tell_clients()

    def _tell_clients(self) -> None:
        if self.share is not None and self.share.membership.is_contended:
            self.share.membership.changed()

    def _fit(self) -> None:
        if self._pause is None:
            self._wake(self._admission.resize(self._now_allowed))

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


class SlotShare:
    """The part of its endpoints that a run may use now, alongside prompt pools in the same process. Its requests
    are assumed to be spread evenly over the endpoints."""

    kind: Literal["run"] = "run"

    def __init__(self, slots: Slots, loads: EndpointLoads, addresses: Sequence[str]) -> None:
        self._slots = slots
        self._endpoints = len(set(addresses))
        self.membership: EndpointMembership = loads.join(self, addresses)

    def allowed(self) -> int:
        """Slots at all endpoints together."""
        return sum(map(self.membership.allowed_at, self.membership.addresses))

    def limit_at(self, address: str) -> int:
        return -(-self._slots.limit // self._endpoints)

    def in_flight_at(self, address: str) -> int:
        return -(-self._slots.in_use // self._endpoints)

    def is_waiting_at(self, address: str) -> bool:
        return self._slots.waiting > 0 and not self._slots.is_paused

    def on_load_changed(self) -> None:
        self._slots.refit()


@contextmanager
def shared_slots(slots: Slots, loads: EndpointLoads, addresses: Sequence[str]) -> Iterator[None]:
    """Counts the slots in the load of these endpoints, and limits them while a pool uses one of these too."""
    share = SlotShare(slots, loads, addresses)
    slots.share = share
    slots.refit()
    try:
        yield
    finally:
        slots.share = None
        share.membership.leave()


def _pause(retry_after: float | None) -> float:
    return _PAUSE if retry_after is None or retry_after > _LONGEST_PAUSE else retry_after
