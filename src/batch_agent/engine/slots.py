"""Slots: permission to have a request in flight. Waiters are woken; nothing polls."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from ..core.events import Event, LimitChanged, Notice, Paused, Resumed
from ..core.protocols.backend import PaceKind, ServerLoad, ServiceLimit
from ..core.protocols.event_sink import EventSink
from ..core.requests import NO_USAGE, Usage
from ..core.run_reports import LimitChange
from ..schedule.concurrency_limit import InflightLimit, LimitDecision
from ..schedule.endpoint_load import EndpointLoads, EndpointMembership
from ..schedule.fair_share import Demand
from ..schedule.health import Health
from ..schedule.overload_detector import OverloadDetector
from ..schedule.slot_queue import Priority, SlotQueue, Ticket

if TYPE_CHECKING:  # most servers limit no rate
    from ..schedule.pace import Pace

_DEFAULT_PAUSE = 0.5
_BUSY_SHARE = 0.75
"""Share of the limit that is in service. Above it, a lower limit alone delays further requests long enough."""
_MIN_BUSY = 4
"""Requests in service on a server that sends Retry-After. With fewer, a rate limit is more likely than overload."""
_MIN_REPORTED_CHANGE = 0.1
_MAX_PAUSE = 300.0
"""A longer Retry-After does not pause the run: the request that receives it gives up."""
_FIRST_REQUESTS = 8
"""Requests in flight until the first response, on a service that reports its limits."""


class Slots:
    """Grants slots by priority, and adapts the limit to the responses of the backend."""

    def __init__(
        self,
        limit: InflightLimit,
        events: EventSink | None = None,
        pace: "Pace | None" = None,
        *,
        awaits_limits: bool = False,
    ) -> None:
        """`pace`: None if requests are never spread over time. `awaits_limits`: the first response reports limits."""
        self._limit = limit
        self.pace = pace
        self._costs: dict[Ticket, Usage] = {}
        """Estimated usage of the waiting requests."""
        self._delayed: Ticket | None = None
        """The last ticket that had to wait for the pace."""
        self._pace_timer: asyncio.TimerHandle | None = None
        self._awaits_limits = awaits_limits
        first = min(limit.current, _FIRST_REQUESTS) if awaits_limits else limit.current
        self._queue = SlotQueue(first, None if pace is None else self._may_grant)
        self._waiters: dict[Ticket, asyncio.Future[None]] = {}
        self._resume_timer: asyncio.TimerHandle | None = None
        self._probe_limit: int | None = None
        self._memory_cap: int | None = None
        self._is_held = False
        """Whether the user has paused the run."""
        self._initial_limit = limit.current
        self._ceiling = limit.current if limit.fixed else None
        """The most requests that all workers together may have in flight; None while each adapts its own limit."""
        self._quota: int | None = None
        self.workers = 1
        self._elsewhere = 0
        self._overload = OverloadDetector()
        self._cut_at: float | None = None
        """When the limit was last cut, until a request that was sent after the cut is answered."""
        self._events = events
        self._began = asyncio.get_running_loop().time()
        self.history: list[LimitChange] = []
        self.share: SlotShare | None = None
        """Set while prompt pools in this process may use the same endpoints."""

    @property
    def is_full(self) -> bool:
        return self._queue.in_use >= self._queue.limit

    @property
    def in_use(self) -> int:
        return self._queue.in_use

    @property
    def in_use_by_all(self) -> int:
        """Slots in use at all workers."""
        return self._queue.in_use + self._elsewhere

    @property
    def waiting(self) -> int:
        return self._queue.waiting

    @property
    def is_paused(self) -> bool:
        return self._resume_timer is not None

    @property
    def limit(self) -> int:
        return self._limit.current if self._quota is None else min(self._quota, self._limit.current)

    @property
    def effective_limit(self) -> int:
        if self._is_held:
            return 0
        allowed = self.limit if self._memory_cap is None else min(self._memory_cap, self.limit)
        if self.share is not None and self.share.membership.is_contended:
            allowed = min(allowed, self.share.allowed())
        if self._awaits_limits:
            allowed = min(allowed, _FIRST_REQUESTS)
        return allowed if self._probe_limit is None else min(self._probe_limit, allowed)

    def set_memory_cap(self, cap: int | None) -> None:
        """Caps the requests in flight, because more contexts do not fit into memory. None: no cap."""
        before, self._memory_cap = self._memory_cap, cap
        if cap == before:
            return
        limit = self.limit
        if (before is not None and before < limit) or (cap is not None and cap < limit):
            self._apply_limit()

    @property
    def highest_limit(self) -> int:
        """Value beyond which the limit never grows."""
        return self._limit.highest

    def set_highest_limit(self, limit: int) -> None:
        """Sets the value beyond which the limit never grows."""
        self._ceiling = limit
        self._resize(self._limit.set_highest(limit))

    def scale(self, factor: float, reason: str) -> None:
        """Scales the limit by this factor, because an endpoint joined or left."""
        self._initial_limit = max(1, round(self._initial_limit * factor))
        if self._limit.fixed and self._ceiling is not None:
            self._ceiling = max(1, round(self._ceiling * factor))
        self._resize(self._limit.scale(factor, reason))

    @property
    def is_held(self) -> bool:
        """Whether the user has paused the run."""
        return self._is_held

    def hold(self, *, is_held: bool) -> None:
        """Stops or resumes granting slots, when the user pauses or continues the run. Requests in flight go on."""
        self._is_held = is_held
        self._apply_limit()

    def set_quota(self, quota: int | None) -> None:
        """Caps the requests in flight at this worker's quota. 0: none for now; waiters stay in the queue. None: no
        quota."""
        if quota != self._quota:
            self._quota = quota
            self._apply_limit()

    def demand(self) -> Demand:
        """Demand for slots. A fixed limit applies to all workers together; an adaptive one to each worker."""
        return Demand(self._ceiling, self._queue.in_use, self._queue.waiting > 0)

    def set_workers(self, workers: int, elsewhere: int, active: int | None = None) -> None:
        """`workers`: number of workers that use the server. `elsewhere`: requests in flight at the other ones.
        `active`: workers that have requests to send, including this one, and share the pace; None: all. An adaptive
        limit starts with this worker's share of the initial limit."""
        self.workers, self._elsewhere = workers, elsewhere
        if self.pace is not None:
            self.pace.set_share(1 / (active or workers), asyncio.get_running_loop().time())
            self._wake(self._queue.grant())
        first = max(1, self._initial_limit // workers)
        if not (self._limit.fixed or self.history or first == self._limit.current):
            self._limit.current = first
            self._apply_limit()

    async def acquire(self, priority: Priority, cost: Usage = NO_USAGE) -> "HeldSlot":
        """`cost`: estimated usage of the request."""
        if self.pace is not None or not self._queue.try_acquire():
            await self._wait(priority, cost)
        elif self.share is not None and self.share.membership.is_contended:
            self.share.membership.changed()
        return HeldSlot(self, cost)

    def on_success(self, seconds: float) -> None:
        """A request was answered after `seconds`."""
        if self._awaits_limits:
            self._awaits_limits = False
            self._apply_limit()
        if self._probe_limit is not None:
            self._probe_limit = None
            if self._resume_timer is None:
                self._wake(self._queue.resize(self.effective_limit))
                self._emit(Resumed())
        if self._cut_at is not None and asyncio.get_running_loop().time() - seconds >= self._cut_at:
            self._cut_at = None
        binds = self._queue.in_use >= self._limit.current
        self._resize(self._limit.on_success(seconds, limit_binds=binds))

    def on_rate_limited(self, retry_after: float | None, request: int, health: Health) -> None:
        """The server refused the request with this number, which is sent again later. The limit is cut only if the
        server refuses most requests. All requests pause (for the Retry-After, if there is one) if a cut is not enough:
        the server processes few requests, or it also refuses most of those that were sent after the cut. Otherwise the
        lower limit alone delays further requests."""
        if not self._overload.is_relevant(request):
            return
        self._limit.on_refusal()
        if not self._overload.is_overloaded(request, health.newest_request):
            return
        if self._quota:  # cut below what this worker sends, not below what all may
            self._limit.current = min(self._limit.current, self._quota)
        in_service, now = health.in_flight_before(request), asyncio.get_running_loop().time()
        least = 0 if retry_after is None else _MIN_BUSY
        if self._cut_at is None or self._is_busy(in_service, least):  # else it may be an outage, which is not a limit
            self._cut_at = now
            self._resize(self._limit.on_overload(now, in_service))
        else:
            in_service = 0
        if not self._is_busy(in_service, least):
            self.pause(_pause(retry_after), "rate limited")

    def _is_busy(self, in_service: int, least: int) -> bool:
        """Whether the server processes nearly as many requests as the limit allows, and at least `_MIN_BUSY`."""
        return in_service >= max(least, _BUSY_SHARE * self.effective_limit)

    def on_service_limits(self, limits: Mapping[PaceKind, ServiceLimit]) -> None:
        """A response reported limits per minute."""
        if self.pace is not None:
            self.pace.report(limits, asyncio.get_running_loop().time())

    def on_load(self, load: ServerLoad) -> None:
        """The server reported its load."""
        own = self._own_share(load)
        self._resize(self._limit.on_load(own, self._queue.in_use, asyncio.get_running_loop().time()))

    def _own_share(self, load: ServerLoad) -> ServerLoad:
        """This worker's share of the server's load."""
        if not self._elsewhere:
            return load
        own = max(1, self._queue.in_use)
        share = own / (own + self._elsewhere)
        return replace(load, running=round(share * load.running), waiting=round(share * load.waiting))

    def pause(self, seconds: float, reason: str, *, then: int | None = None) -> None:
        """Grants no slots for `seconds`, and then at most `then` at a time until a request succeeds."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        self._probe_limit = then if self._probe_limit is None else self._probe_limit
        reported_until = loop.time() if self._resume_timer is None else self._resume_timer.when()
        if until > reported_until + _MIN_REPORTED_CHANGE:
            self._emit(Paused(seconds, reason))
        if self._resume_timer is not None:
            until = max(until, self._resume_timer.when())
            self._resume_timer.cancel()
        self._resume_timer = loop.call_at(until, self._resume)
        self._queue.resize(0)

    def _resume(self) -> None:
        self._resume_timer = None
        self._wake(self._queue.resize(self.effective_limit))
        if self._probe_limit is None:
            self._emit(Resumed())

    def _may_grant(self, ticket: Ticket) -> bool:
        """Whether the pace permits the next request now. If so, the request is counted; if not, a timer is set to grant
        it."""
        loop, pace = asyncio.get_running_loop(), self.pace
        assert pace is not None
        if self._pace_timer is not None:
            self._pace_timer.cancel()
            self._pace_timer = None
        cost, now = self._costs[ticket], loop.time()
        ready_at = pace.ready_at(cost, now)
        if ready_at <= now:
            pace.reserve(cost)
            return True
        if ticket != self._delayed:
            self._delayed = ticket
            pace.delayed += 1
            if pace.delayed == 1:
                self._emit(Notice(f"Requests are paced at {pace.pacing()}."))
        self._pace_timer = loop.call_at(ready_at, self._on_pace)
        return False

    def _on_pace(self) -> None:
        self._pace_timer = None
        self._wake(self._queue.grant())

    async def _wait(self, priority: Priority, cost: Usage) -> None:
        ticket = self._queue.enqueue(priority)
        granted = asyncio.get_running_loop().create_future()
        self._waiters[ticket] = granted
        if self.pace is not None:
            self._costs[ticket] = cost
            self._wake(self._queue.grant())
        if self.share is not None and self.share.membership.is_contended:
            self.share.membership.changed()
        try:
            await granted
        except asyncio.CancelledError:
            # A grant and a cancellation may cross in either order: a ticket that no longer waits was granted.
            if self._waiters.pop(ticket, None) is None:
                if self.pace is not None:
                    self.pace.refund(cost)
                self._release()
            else:
                self._queue.cancel(ticket)
                self._costs.pop(ticket, None)
                if self.pace is not None:
                    self._wake(self._queue.grant())  # the next request may need less
                self._notify_clients()
            raise

    def _release(self) -> None:
        self._wake(self._queue.release())
        if self.share is not None and self.share.membership.is_contended:
            self.share.membership.changed()

    def _wake(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            waiter = self._waiters.pop(ticket)
            self._costs.pop(ticket, None)
            if not waiter.done():
                waiter.set_result(None)

    def _resize(self, change: LimitDecision | None) -> None:
        if change is None:
            return
        self._apply_limit()
        self.history.append(LimitChange(asyncio.get_running_loop().time() - self._began, *change))
        self._emit(LimitChanged(*change))

    def on_load_changed(self) -> None:
        """Applies this run's current share of endpoints that other clients in this process use too."""
        if self._resume_timer is None:
            granted = self._queue.resize(self.effective_limit)
            self._wake(granted)
            if granted:
                self._notify_clients()

    def _notify_clients(self) -> None:
        if self.share is not None and self.share.membership.is_contended:
            self.share.membership.changed()

    def _apply_limit(self) -> None:
        if self._resume_timer is None:
            self._wake(self._queue.resize(self.effective_limit))

    def _emit(self, event: Event) -> None:
        if self._events is not None:
            self._events.emit(event)


class HeldSlot:
    """A granted slot. Releasing it twice is harmless."""

    __slots__ = ("_cost", "_slots")

    def __init__(self, slots: Slots, cost: Usage) -> None:
        self._slots: Slots | None = slots
        self._cost = cost

    def settle(self, usage: Usage) -> None:
        """Corrects what the pace reserved for the request."""
        if self._slots is not None and self._slots.pace is not None:
            self._slots.pace.settle(self._cost, usage)

    def release(self) -> None:
        if self._slots is not None:
            slots, self._slots = self._slots, None
            slots._release()


class SlotShare:
    """A run's current share of its endpoints, which prompt pools in the same process use too. Assumes that its requests
    are spread evenly over the endpoints."""

    kind: Literal["run"] = "run"

    def __init__(self, slots: Slots, loads: EndpointLoads, addresses: Sequence[str]) -> None:
        self._slots = slots
        self._endpoints = len(set(addresses))
        self.membership: EndpointMembership = loads.join(self, addresses)

    def allowed(self) -> int:
        """Number of slots at all endpoints together."""
        return sum(map(self.membership.allowed_at, self.membership.addresses))

    def limit_at(self, address: str) -> int:
        return -(-self._slots.limit // self._endpoints)

    def in_flight_at(self, address: str) -> int:
        return -(-self._slots.in_use // self._endpoints)

    def is_waiting_at(self, address: str) -> bool:
        return self._slots.waiting > 0 and not self._slots.is_paused

    def on_load_changed(self) -> None:
        self._slots.on_load_changed()

    def move(self, loads: EndpointLoads, addresses: Sequence[str]) -> None:
        """Changes the endpoints that the run uses."""
        self.membership.leave()
        self._endpoints = max(1, len(set(addresses)))
        self.membership = loads.join(self, addresses)


@contextmanager
def shared_slots(slots: Slots, loads: EndpointLoads, addresses: Sequence[str]) -> Iterator[None]:
    """Counts the slots in the load of these endpoints, and limits them while a pool uses one of the endpoints too."""
    share = SlotShare(slots, loads, addresses)
    slots.share = share
    slots.on_load_changed()
    try:
        yield
    finally:
        slots.share = None
        share.membership.leave()


def _pause(retry_after: float | None) -> float:
    return _DEFAULT_PAUSE if retry_after is None or retry_after > _MAX_PAUSE else retry_after
