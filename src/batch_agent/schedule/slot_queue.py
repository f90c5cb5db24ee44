"""Who gets a slot. Agents that come back from their tools go before fresh ones, so that started work is finished."""

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple, NewType

_SPARE = 64
"""Tickets that left stay in the order until their turn comes, but no more than this beside as many as still wait."""

PATIENCE = 16
"""Rounds of grants after which age counts more than rank."""

Ticket = NewType("Ticket", int)


class Priority(NamedTuple):
    """Smaller goes first: agents under way, then those with the fewest turns left, then the oldest."""

    is_fresh: bool
    turns_left: int = 0
    since: int = 0


@dataclass(slots=True)
class SlotQueue:
    """Counts slots and orders those who wait. Never grants beyond the limit; never leaves a slot idle with a waiter.
    Nobody waits for ever: who has been passed over for many rounds goes next, whatever its rank."""

    limit: int
    in_use: int = 0
    _waiting: dict[Ticket, Priority] = field(default_factory=dict)
    _order: list[tuple[Priority, Ticket]] = field(default_factory=list)
    _arrivals: deque[tuple[Ticket, int]] = field(default_factory=deque)
    """Who waits, oldest first, and how many slots had been granted when each came."""
    _granted: int = 0
    _last: int = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def take(self) -> bool:
        """A slot at once, if one is free: nobody can be waiting for it then."""
        if self.in_use < self.limit:
            self.in_use += 1
            return True
        return False

    def wait(self, rank: Priority) -> Ticket:
        """Queues up, when there was nothing to take. The ticket comes back from a later `release` or `resize`."""
        self._last += 1
        ticket = Ticket(self._last)
        self._waiting[ticket] = rank
        heapq.heappush(self._order, (rank, ticket))
        self._arrivals.append((ticket, self._granted))
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Gives up waiting. Only for a ticket that was not granted."""
        del self._waiting[ticket]
        self._forget_gone()

    def release(self) -> list[Ticket]:
        """Gives a slot back; the tickets that are granted now."""
        self.in_use -= 1
        return self._grant()

    def resize(self, limit: int) -> list[Ticket]:
        """A lower limit takes effect as slots come back; a higher one at once."""
        self.limit = limit
        return self._grant()

    def _grant(self) -> list[Ticket]:
        granted: list[Ticket] = []
        while self.in_use < self.limit and self._waiting:
            ticket = self._longest_passed_over() or heapq.heappop(self._order)[1]
            if self._waiting.pop(ticket, None) is not None:
                self.in_use += 1
                self._granted += 1
                granted.append(ticket)
        if not self._waiting:
            self._order.clear()
            self._arrivals.clear()
        self._forget_gone()
        return granted

    def _longest_passed_over(self) -> Ticket | None:
        while self._arrivals[0][0] not in self._waiting:
            self._arrivals.popleft()
        ticket, granted_then = self._arrivals[0]
        return ticket if self._granted - granted_then >= PATIENCE * self.limit else None

    def _forget_gone(self) -> None:
        if len(self._order) > 2 * len(self._waiting) + _SPARE:
            self._order = [(rank, waiting) for waiting, rank in self._waiting.items()]
            heapq.heapify(self._order)
            self._arrivals = deque(arrival for arrival in self._arrivals if arrival[0] in self._waiting)
