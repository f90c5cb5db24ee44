"""Admission never exceeds its limit and never leaves a slot idle with a waiter, whatever happens in which order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from batch_agent.schedule.slot_queue import MAX_ROUNDS_PASSED_OVER, Priority, SlotQueue, Ticket

RANKS = st.builds(Priority, st.booleans(), st.integers(0, 3), st.integers(0, 3))


class Waiting(RuleBasedStateMachine):
    """Beside the real thing a list of who waits, in the order in which they came, and what was granted since."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = SlotQueue(2)
        self.limit = 2
        self.in_use = 0
        self.queue: list[tuple[Priority, Ticket]] = []
        self.ever_granted: set[Ticket] = set()
        self.passed_over: dict[Ticket, int] = {}

    tickets: Bundle[Ticket] = Bundle("tickets")

    @rule(target=tickets, rank=RANKS)
    def arrive(self, rank: Priority) -> Ticket:
        if self.slots.try_acquire():
            assert self.in_use < self.limit
            assert not self.queue
            self.in_use += 1
            return Ticket(-1)
        assert self.in_use >= self.limit
        ticket = self.slots.enqueue(rank)
        assert ticket not in self.ever_granted
        assert ticket not in {waiting for _, waiting in self.queue}
        self.queue.append((rank, ticket))
        self.passed_over[ticket] = 0
        return ticket

    @rule(ticket=consumes(tickets))
    def leave(self, ticket: Ticket) -> None:
        for place, (_, waiting) in enumerate(self.queue):
            if waiting == ticket:
                self.slots.cancel(ticket)
                del self.queue[place]
                return

    @precondition(lambda self: self.in_use > 0)
    @rule()
    def release(self) -> None:
        self.in_use -= 1
        self._expect(self.slots.release())

    @rule(limit=st.integers(0, 5))
    def resize(self, limit: int) -> None:
        self.limit = limit
        self._expect(self.slots.resize(limit))

    @precondition(lambda self: self.queue)
    @rule(times=st.integers(1, 3 * MAX_ROUNDS_PASSED_OVER), rank=RANKS)
    def be_passed_over(self, times: int, rank: Priority) -> None:
        for _ in range(times):
            if self.in_use == 0 or len(self.queue) == 0:
                return
            self.arrive(rank)
            self.release()

    def _expect(self, granted: list[Ticket]) -> None:
        expected: list[Ticket] = []
        while self.in_use < self.limit and self.queue:
            entry = self._next()
            self.queue.remove(entry)
            self.in_use += 1
            expected.append(entry[1])
            for _, waiting in self.queue:
                self.passed_over[waiting] += 1
        assert granted == expected
        assert not self.ever_granted & set(granted)
        self.ever_granted |= set(granted)

    def _next(self) -> tuple[Priority, Ticket]:
        oldest = self.queue[0]
        if self.passed_over[oldest[1]] >= MAX_ROUNDS_PASSED_OVER * self.limit:
            return oldest
        return min(self.queue, key=lambda entry: entry[0])  # of equal ranks the one that came first

    @invariant()
    def counts_are_right(self) -> None:
        assert (self.slots.limit, self.slots.in_use, self.slots.waiting) == (self.limit, self.in_use, len(self.queue))

    @invariant()
    def no_slot_is_idle_with_a_waiter(self) -> None:
        assert not self.queue or self.slots.in_use >= self.slots.limit

    @invariant()
    def nothing_leaks(self) -> None:
        assert len(self.slots._order) <= 2 * len(self.queue) + 64
        assert len(self.slots._waiting) == len(self.queue)
        assert len(self.slots._arrivals) <= 2 * len(self.queue) + 64 + MAX_ROUNDS_PASSED_OVER * 5


TestAdmission = Waiting.TestCase


@pytest.mark.slow
@given(
    limits=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    ranks=st.lists(RANKS, min_size=1, max_size=30),
    arrivals=st.lists(st.integers(0, 3), min_size=1, max_size=12),
)
def test_no_waiting_agent_is_overtaken_more_often_than_allowed(
    limits: list[int], ranks: list[Priority], arrivals: list[int]
) -> None:
    """However the others rank, and whoever comes after it: at most PATIENCE rounds, and those who were there first."""
    slots = SlotQueue(limits[0])
    while slots.try_acquire():
        pass
    grants = came = 0
    waiting: dict[Ticket, tuple[int, int]] = {}
    """For each how many had been granted when it came, and how many were before it."""
    for step in range(600):
        for _ in range(arrivals[step % len(arrivals)] if step < 300 else 0):
            before_it = slots.waiting
            waiting[slots.enqueue(ranks[came % len(ranks)])] = (grants, before_it)
            came += 1
        granted = slots.resize(limits[(step // 100) % len(limits)]) if step % 100 == 0 else slots.release()
        for ticket in granted:
            then, before_it = waiting.pop(ticket)
            assert grants - then <= MAX_ROUNDS_PASSED_OVER * max(limits) + before_it
            grants += 1
        for then, before_it in waiting.values():
            assert grants - then <= MAX_ROUNDS_PASSED_OVER * max(limits) + before_it
        if slots.in_use == 0:
            return
