"""The ledger's sums are those of its agents, and nobody is let in where there is no room, whatever happens when."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batch_agent.schedule.kv_ledger import KvLedger

CAPACITY = 1000
SPEEDS = st.sampled_from([None, 100.0, 1e5])
SIZES = st.sampled_from([0.0, 30.0, 90.0, 150.0, 300.0, 450.0, 1500.0])


@dataclass
class Known:
    """What the test knows of an agent."""

    own: float
    first: float
    has_answered: bool = False
    is_resident: bool = False
    is_guest: bool = False
    waits: bool = False


class Accounts(RuleBasedStateMachine):
    """Beside the real thing the agents one by one."""

    capacity: int | None = CAPACITY

    def __init__(self) -> None:
        super().__init__()
        self.ledger = KvLedger(self.capacity)
        self.agents: dict[str, Known] = {}
        self.now = 0.0
        self.born = 0
        self.evictions = self.overcommitted = self.most = 0

    def _pick(self, number: int, *, resident: bool | None, waits: bool) -> str | None:
        fitting = [
            name
            for name, known in self.agents.items()
            if known.waits == waits and (resident is None or known.is_resident == resident)
        ]
        return fitting[number % len(fitting)] if fitting else None

    @initialize(sizes=st.lists(SIZES, max_size=6), speed=SPEEDS)
    def begin_with_some_that_wait(self, sizes: list[float], speed: float | None) -> None:
        self.ledger.prefill_speed.tokens_per_second = speed
        for number, size in enumerate(sizes):
            self.begin(size)
            self.admit(number, False)
            if number % 3:
                self.pause(number, None)

    @rule(size=SIZES)
    def begin(self, size: float) -> None:
        self.born += 1
        self.agents[f"a{self.born}"] = Known(size, size)
        self.ledger.register(f"a{self.born}", size)

    @rule(number=st.integers(0, 50), overcommit=st.booleans())
    def admit(self, number: int, overcommit: bool) -> None:
        name = self._pick(number, resident=None, waits=False)
        if name is None:
            return
        was_resident, was_alone = self.agents[name].is_resident, self._residents() == 0
        held, evictions = self.ledger.reserved_tokens, self.ledger.counts.evictions
        is_in = self.ledger.admit(name, self.now, overcommit=overcommit)
        self.agents[name].is_resident = is_in
        if is_in and not was_resident:
            limit = self.ledger.limit
            is_beyond = (
                limit is not None and self.ledger.reserved_tokens > limit * (1 + 1e-9) and self.ledger.residents > 1
            )
            self.agents[name].is_guest = is_beyond
            self.overcommitted += is_beyond
            assert overcommit or not is_beyond
        self._expect_taken_places()
        assert is_in or not (overcommit or was_alone or was_resident)
        if not is_in:
            assert self.ledger.reserved_tokens == pytest.approx(held)
            assert self.ledger.counts.evictions == evictions
        self.most = max(self.most, self._residents())

    @rule(
        number=st.integers(0, 50),
        prompt=st.integers(0, 900),
        cached=st.integers(0, 1200),
        output=st.integers(0, 300),
        has_waiters=st.booleans(),
    )
    def heard(self, number: int, prompt: int, cached: int, output: int, has_waiters: bool) -> None:
        name = self._pick(number, resident=True, waits=False)
        if name is None:
            return
        self.ledger.on_usage(name, prompt, cached, output, has_waiters=has_waiters)
        known = self.agents[name]
        if prompt:
            known.own = max(1.0, prompt + output - self.ledger.shared_tokens)
            known.first = known.first if known.has_answered else known.own - output
            known.has_answered = True
        self._expect_taken_places()

    @rule(number=st.integers(0, 50), prompt=st.integers(0, 900))
    def shrank(self, number: int, prompt: int) -> None:
        name = self._pick(number, resident=None, waits=False)
        if name is not None:
            self.ledger.on_compaction(name, prompt)
            known = self.agents[name]
            known.own = min(known.own, max(1.0, prompt - self.ledger.shared_tokens))

    @rule(number=st.integers(0, 50), likely=st.none() | st.floats(0.0, 100.0))
    def pause(self, number: int, likely: float | None) -> None:
        name = self._pick(number, resident=True, waits=False)
        if name is not None:
            self.ledger.pause(name, self.now, likely)
            self.agents[name].waits = True

    @rule(number=st.integers(0, 50))
    def resume(self, number: int) -> None:
        name = self._pick(number, resident=None, waits=True)
        if name is not None:
            self.ledger.resume(name)
            self.agents[name].waits = False

    @rule(number=st.integers(0, 50), waits=st.booleans())
    def leave(self, number: int, waits: bool) -> None:
        name = self._pick(number, resident=None, waits=waits)
        if name is not None:
            self.ledger.remove(name)
            self.ledger.remove(name)  # harmless
            del self.agents[name]
            assert not self.ledger.is_resident(name)

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 50.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(speed=SPEEDS)
    def measure(self, speed: float | None) -> None:
        self.ledger.prefill_speed.tokens_per_second = speed

    @rule(shared=st.floats(0.0, 200.0))
    def learn(self, shared: float) -> None:
        self.ledger.shared_tokens = shared

    @precondition(lambda self: len(self.agents) > 7)
    @rule()
    def all_leave(self) -> None:
        for name in list(self.agents):
            self.ledger.remove(name)
        self.agents.clear()
        assert self.ledger.residents == 0
        assert self.ledger.reserved_tokens == pytest.approx(self.ledger.shared_tokens, abs=1e-6)
        assert self.ledger.next_lease_end() is None

    def _residents(self) -> int:
        return sum(known.is_resident for known in self.agents.values())

    def _expect_taken_places(self) -> None:
        """Only those who wait for their tools may have lost their places."""
        for name, known in self.agents.items():
            if known.is_resident and not self.ledger.is_resident(name):
                assert known.waits
                known.is_resident = False
                self.evictions += 1

    @invariant()
    def counts_are_right(self) -> None:
        assert self.ledger.residents == self._residents()
        assert all(self.ledger.is_resident(name) == known.is_resident for name, known in self.agents.items())
        counts = self.ledger.counts
        assert (counts.evictions, counts.overcommitted, counts.max_residents) == (
            self.evictions,
            self.overcommitted,
            self.most,
        )

    @invariant()
    def sums_do_not_drift(self) -> None:
        residents = [known for known in self.agents.values() if known.is_resident]
        assert self.ledger._own == pytest.approx(sum(known.own for known in residents), abs=1e-6)
        assert self.ledger._first == pytest.approx(sum(known.first for known in residents), abs=1e-6)
        guests = sum(known.own for known in residents if known.is_guest)
        assert self.ledger._overcommitted_tokens == pytest.approx(guests, abs=1e-6)
        leases = self.ledger._leases
        overdue = [self.agents[name] for name in leases._expired]
        assert leases.expired_own == pytest.approx(sum(known.own for known in overdue), abs=1e-6)
        assert leases.expired_first == pytest.approx(sum(known.first for known in overdue), abs=1e-6)
        assert self.ledger.reserved_tokens >= self.ledger.shared_tokens + sum(known.own for known in residents) - 1e-6

    @invariant()
    def only_residents_that_wait_can_be_asked_for_their_place(self) -> None:
        waiting = {name for name, known in self.agents.items() if known.waits and known.is_resident}
        leases = self.ledger._leases
        assert set(leases._active) | set(leases._expired) == waiting
        assert not set(leases._active) & set(leases._expired)

    @invariant()
    def the_limit_is_a_positive_part_of_the_capacity(self) -> None:
        if self.ledger.limit is not None:
            assert 0 < self.ledger.limit <= (self.capacity or float("inf"))
        else:
            assert self.capacity is None

    @invariant()
    def a_lease_ends_some_time_if_anybody_has_one(self) -> None:
        end = self.ledger.next_lease_end()
        assert end is None or self.ledger._leases._active


class AccountsWithoutCapacity(Accounts):
    capacity = None


TestLedger = Accounts.TestCase
TestLedger.settings = settings(stateful_step_count=60)
TestLedgerWithoutCapacity = AccountsWithoutCapacity.TestCase
TestLedgerWithoutCapacity.settings = settings(stateful_step_count=60)


@given(size=st.floats(0.0, 1e12), capacity=st.integers(1, 10_000), shared=st.floats(0.0, 1e6))
def test_a_lone_agent_of_any_size_is_admitted(size: float, capacity: int, shared: float) -> None:
    ledger = KvLedger(capacity, shared)
    ledger.register("a", size)
    assert ledger.admit("a", 0.0)


@given(sizes=st.lists(st.integers(1, 400), min_size=2, max_size=30), waits=st.lists(st.floats(0.0, 3.0), min_size=1))
def test_residency_is_given_up_in_the_order_of_lease_expiry(sizes: list[int], waits: list[float]) -> None:
    ledger = KvLedger(sum(sizes) * 3)
    ledger.prefill_speed.tokens_per_second = 100.0
    now, order = 0.0, []
    for number, size in enumerate(sizes):
        now += waits[number % len(waits)]
        ledger.register(str(number), size)
        assert ledger.admit(str(number), now)
        ledger.pause(str(number), now, None)
        order.append(str(number))
    assert ledger.limit is not None
    assert ledger.next_lease_end() == pytest.approx(waits[0] + ledger.limit / 100.0)
    now += 1e6
    for newcomer in range(1000, 1000 + len(sizes)):
        ledger.register(str(newcomer), sum(sizes) * 0.9)
        ledger.admit(str(newcomer), now)
        still = [name for name in order if ledger.is_resident(name)]
        assert still == order[len(order) - len(still) :]


@given(
    turns=st.lists(st.tuples(st.sampled_from([0, 3000, 5000, 10_000]), st.booleans()), min_size=1, max_size=30),
    capacity=st.none() | st.integers(1000, 100_000),
    agents=st.integers(1, 12),
)
def test_corrections_of_the_kv_capacity_stay_within_it(
    turns: list[tuple[int, bool]], capacity: int | None, agents: int
) -> None:
    ledger = KvLedger(capacity)
    for number in range(agents):
        ledger.register(str(number), 10.0)
        assert ledger.admit(str(number), 0.0)
    for number in range(agents):
        ledger.on_usage(str(number), 5000, 1, 10, has_waiters=False)
    for cached, has_waiters in turns:
        for number in range(40):
            ledger.on_usage(str(number % agents), 5000, cached, 10, has_waiters=has_waiters)
            assert ledger.limit is None or 0 < ledger.limit <= (capacity or float("inf"))
