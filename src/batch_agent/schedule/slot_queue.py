"""Slot queue: which waiting agent gets the next slot. Started agents go before new ones, so that work is finished."""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import field
from typing import NamedTuple, NewType

from ..core.fast_dataclass import dataclass

_MAX_STALE = 64
"""Cancelled tickets that may stay in the heap, beyond as many as still wait, before it is rebuilt."""

MAX_ROUNDS_PASSED_OVER = 16
"""Rounds of grants after which a waiter goes next regardless of its priority."""

Ticket = NewType("Ticket", int)


class Priority(NamedTuple):
    """Priority of a waiter; smaller goes first: started agents, then the fewest turns left, then the oldest."""

    is_fresh: bool
    turns_left: int = 0
    since: int = 0


@dataclass(slots=True)
class SlotQueue:
    """Counts slots and orders the waiters. Never grants beyond the limit, and never leaves a slot idle with a waiter,
    unless `may_grant` delays the next one. No waiter starves: one that was passed over for `MAX_ROUNDS_PASSED_OVER`
    rounds goes next."""

    limit: int
    may_grant: Callable[[Ticket], bool] | None = None
    """Called with the next ticket when a slot is free. False: neither this nor a later ticket is granted now."""
    in_use: int = 0
    _waiting: dict[Ticket, Priority] = field(default_factory=dict)
    _order: list[tuple[Priority, Ticket]] = field(default_factory=list)
    _arrivals: deque[tuple[Ticket, int]] = field(default_factory=deque)
    """Waiters, oldest first, with the number of slots that had been granted when each arrived."""
    _granted: int = 0
    _last: int = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def try_acquire(self) -> bool:
        """Takes a slot if one is free. Then no ticket waits for it."""
        if self.in_use < self.limit:
            self.in_use += 1
            return True
        return False

    def enqueue(self, priority: Priority) -> Ticket:
        """Queues for a slot after `try_acquire` failed. A later `release` or `resize` returns the ticket."""
        self._last += 1
        ticket = Ticket(self._last)
        self._waiting[ticket] = priority
        heapq.heappush(self._order, (priority, ticket))
        self._arrivals.append((ticket, self._granted))
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Stops waiting. Only for a ticket that was not granted."""
        del self._waiting[ticket]
        self._drop_stale()

    def release(self) -> list[Ticket]:
        """Returns a slot. The tickets that are granted now."""
        self.in_use -= 1
        return self.grant()

    def resize(self, limit: int) -> list[Ticket]:
        """Changes the limit. A lower one takes effect as slots are released, a higher one at once."""
        self.limit = limit
        return self.grant()

    def grant(self) -> list[Ticket]:
        """The tickets that are granted now."""
        granted: list[Ticket] = []
        while self.in_use < self.limit and self._waiting:
            ticket = self._longest_passed_over() or self._first()
            if self.may_grant is not None and not self.may_grant(ticket):
                break
            del self._waiting[ticket]
            self.in_use += 1
            self._granted += 1
            granted.append(ticket)
        if not self._waiting:
            self._order.clear()
            self._arrivals.clear()
        if granted:
            self._drop_stale()
        return granted

    def _first(self) -> Ticket:
        while (ticket := self._order[0][1]) not in self._waiting:
            heapq.heappop(self._order)
        return ticket

    def _longest_passed_over(self) -> Ticket | None:
        while self._arrivals[0][0] not in self._waiting:
            self._arrivals.popleft()
        ticket, granted_then = self._arrivals[0]
        return ticket if self._granted - granted_then >= MAX_ROUNDS_PASSED_OVER * self.limit else None

    def _drop_stale(self) -> None:
        if len(self._order) > 2 * len(self._waiting) + _MAX_STALE:
            self._order = [(priority, waiting) for waiting, priority in self._waiting.items()]
            heapq.heapify(self._order)
            self._arrivals = deque(arrival for arrival in self._arrivals if arrival[0] in self._waiting)
