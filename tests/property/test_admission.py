"""Admission never exceeds its limit and never leaves a slot idle with a waiter, whatever happens in which order."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from batch_agent.schedule.admission import Admission, Rank, Ticket

RANKS = st.builds(Rank, st.booleans(), st.integers(0, 3), st.integers(0, 3))


class Waiting(RuleBasedStateMachine):
    """Beside the real thing a list of who waits, in the order in which they came."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = Admission(2)
        self.limit = 2
        self.in_use = 0
        self.queue: list[tuple[Rank, Ticket]] = []
        self.ever_granted: set[Ticket] = set()

    tickets: Bundle[Ticket] = Bundle("tickets")

    @rule(target=tickets, rank=RANKS)
    def arrive(self, rank: Rank) -> Ticket:
        if self.slots.take():
            assert self.in_use < self.limit
            assert not self.queue
            self.in_use += 1
            return Ticket(-1)
        assert self.in_use >= self.limit
        ticket = self.slots.wait(rank)
        assert ticket not in self.ever_granted
        assert ticket not in {waiting for _, waiting in self.queue}
        self.queue.append((rank, ticket))
        return ticket

    @rule(ticket=consumes(tickets))
    def leave(self, ticket: Ticket) -> None:
        for place, (_, waiting) in enumerate(self.queue):
            if waiting == ticket:
                self.slots.leave(ticket)
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

    def _expect(self, granted: list[Ticket]) -> None:
        room = max(0, self.limit - self.in_use)
        line = sorted(self.queue, key=lambda entry: entry[0])  # stable: equal ranks in the order in which they came
        assert granted == [ticket for _, ticket in line[:room]]
        assert not self.ever_granted & set(granted)
        self.ever_granted |= set(granted)
        self.in_use += len(granted)
        self.queue = [entry for entry in self.queue if entry[1] not in granted]

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


TestAdmission = Waiting.TestCase
TestAdmission.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
