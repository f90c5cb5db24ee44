"""Routing never gives work to who may not have it, loses none of it, and leaves no endpoint idle or behind."""

from copy import deepcopy
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, consumes, invariant, multiple, rule

from batch_agent.schedule.endpoints.affinity import MAX_OVERLOAD
from batch_agent.schedule.endpoints.routing import MAX_WAIT_RATIO, Routing, Ticket

ENDPOINTS = 3
PLACES = st.integers(0, ENDPOINTS - 1)
UNIT = st.floats(0.0, 1.0, exclude_max=True)
DRAWS = st.tuples(UNIT, UNIT)
WEIGHTS = st.floats(0.01, 1e5)
KEYS = st.none() | st.integers(0, 3)
PREFIXES = st.lists(st.integers(0, 3), max_size=3, unique=True)
SEEDS = st.integers(0, 2**32)


@dataclass
class Known:
    """What should be known of an endpoint's standing."""

    faults: int = 0
    ejections: int = 0
    answers: int = 0
    until: float | None = None
    probe: Ticket | None = None
    stale: int = 0
    is_draining: bool = False

    def may_have_work(self, now: float) -> bool:
        is_back = self.until is None or (self.probe is None and now >= self.until)
        return is_back and not self.is_draining

    def eject(self, now: float, newest: int) -> None:
        self.until = now + min(60.0, 2.0**self.ejections)
        self.ejections += 1
        self.faults, self.probe, self.stale = 0, None, newest


class Routes(RuleBasedStateMachine):
    """Beside the real thing a plain account of what is under way, and of who is ejected until when."""

    def __init__(self) -> None:
        super().__init__()
        self.routing = Routing(["a", "b", "c"])
        self.now = 0.0
        self.known = [Known() for _ in range(ENDPOINTS)]
        self.open: dict[Ticket, tuple[int, float]] = {}
        self.newest = [0] * ENDPOINTS

    tickets: Bundle[Ticket] = Bundle("tickets")

    @rule(
        target=tickets, weight=WEIGHTS, prefixes=PREFIXES, origin=KEYS, exclude=st.sets(PLACES, max_size=2), draw=DRAWS
    )
    def send(
        self, weight: float, prefixes: list[int], origin: int | None, exclude: set[int], draw: tuple[float, float]
    ) -> Ticket | MultipleResults[Ticket]:
        able = {each for each in range(ENDPOINTS) if self.known[each].may_have_work(self.now)} - exclude
        again = deepcopy(self.routing).choose(
            weight, self.now, prefixes=prefixes, origin=origin, exclude=exclude, draw=draw
        )
        chosen = self.routing.choose(weight, self.now, prefixes=prefixes, origin=origin, exclude=exclude, draw=draw)
        assert chosen == again
        assert chosen in able if able else chosen is None
        return self._send(chosen, weight) if chosen is not None else multiple()

    @rule(ticket=consumes(tickets))
    def answer(self, ticket: Ticket) -> None:
        self.routing.done(ticket, self.now)
        self._was_answered(ticket)

    @rule(ticket=consumes(tickets))
    def fail_by_itself(self, ticket: Ticket) -> None:
        self.routing.failed(ticket, self.now, is_endpoint_fault=False)
        self._was_answered(ticket)

    @rule(ticket=consumes(tickets), is_refused=st.booleans())
    def fail(self, ticket: Ticket, is_refused: bool) -> None:
        self.routing.failed(ticket, self.now, is_endpoint_fault=True, is_refused=is_refused)
        endpoint, _ = self.open.pop(ticket)
        known = self.known[endpoint]
        if ticket <= known.stale:
            return
        known.faults += 1
        if ticket == known.probe or (known.until is None and (is_refused or known.faults == 2)):
            known.eject(self.now, self.newest[endpoint])

    @rule(ticket=consumes(tickets))
    def give_up(self, ticket: Ticket) -> None:
        self.routing.abandoned(ticket, self.now)
        self.routing.abandoned(ticket, self.now)
        endpoint, _ = self.open.pop(ticket)
        if self.known[endpoint].probe == ticket:
            self.known[endpoint].probe = None

    @rule(endpoint=PLACES, is_draining=st.booleans())
    def drain(self, endpoint: int, is_draining: bool) -> None:
        self.known[endpoint].is_draining = is_draining
        if is_draining:
            self.routing.drain(endpoint)
        else:
            self.routing.undrain(endpoint)

    @rule(seconds=st.floats(0.0, 5.0))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def await_return(self) -> None:
        away = [known.until for known in self.known if known.until is not None and known.until > self.now]
        self.now = min(away, default=self.now)

    def _send(self, endpoint: int, weight: float) -> Ticket:
        ticket = self.routing.sent(endpoint, weight, self.now)
        self.open[ticket] = (endpoint, weight)
        self.newest[endpoint] = ticket
        if self.known[endpoint].until is not None:
            self.known[endpoint].probe = ticket
        return ticket

    def _was_answered(self, ticket: Ticket) -> None:
        known = self.known[self.open.pop(ticket)[0]]
        if ticket <= known.stale:
            return
        if ticket == known.probe:
            known.until, known.probe, known.answers = None, None, 0
        known.faults = 0
        known.answers += 1
        if known.answers >= 16:
            known.ejections = 0

    @invariant()
    def who_may_have_work_is_right(self) -> None:
        able = [each for each in range(ENDPOINTS) if self.known[each].may_have_work(self.now)]
        assert self.routing.available(self.now) == able

    @invariant()
    def work_under_way_is_what_is_open(self) -> None:
        for endpoint in range(ENDPOINTS):
            weights = [weight for place, weight in self.open.values() if place == endpoint]
            assert self.routing.requests(endpoint) == len(weights)
            assert abs(self.routing.work(endpoint) - sum(weights)) <= 1e-6
            assert weights or self.routing.work(endpoint) == 0.0

    @invariant()
    def loads_are_numbers(self) -> None:
        assert all(0.0 < self.routing.expected_wait(each, 1.0, self.now) < float("inf") for each in range(ENDPOINTS))


TestRoutes = Routes.TestCase


@given(sent=st.lists(st.tuples(PLACES, WEIGHTS), max_size=30), seed=SEEDS)
def test_when_every_ticket_is_returned_no_load_is_left(sent: list[tuple[int, float]], seed: int) -> None:
    routing, order = Routing(["a", "b", "c"]), Random(seed)
    tickets = [routing.sent(endpoint, weight, float(at)) for at, (endpoint, weight) in enumerate(sent)]
    order.shuffle(tickets)
    for ticket in tickets:
        close = order.choice([routing.done, routing.abandoned])
        close(ticket, 30.0 + order.random())
    assert [(routing.work(each), routing.requests(each)) for each in range(ENDPOINTS)] == [(0.0, 0)] * ENDPOINTS


def loaded(speeds: list[float], work: list[float]) -> Routing:
    """Endpoints that have been seen at these speeds, with so much under way now, at 1.0."""
    routing = Routing([str(each) for each in range(len(speeds))])
    for endpoint, speed in enumerate(speeds):
        routing.done(routing.sent(endpoint, speed, 0.0), 1.0)
    for endpoint, weight in enumerate(work):
        if weight:
            routing.sent(endpoint, weight, 1.0)
    return routing


SPEEDS = st.lists(st.floats(0.2, 5.0), min_size=ENDPOINTS, max_size=ENDPOINTS)
WORK = st.lists(st.just(0.0) | st.floats(0.01, 50.0), min_size=ENDPOINTS, max_size=ENDPOINTS)


@given(speeds=SPEEDS, work=WORK, weight=st.floats(0.01, 10.0), home=PLACES, draw=DRAWS)
def test_an_agent_stays_on_its_endpoint_until_the_wait_there_is_too_long(
    speeds: list[float], work: list[float], weight: float, home: int, draw: tuple[float, float]
) -> None:
    routing = loaded(speeds, work)
    others = [each for each in range(ENDPOINTS) if each != home]
    assert routing.choose(weight, 1.0, origin="agent", exclude=others, draw=draw) == home
    best = min(routing.expected_wait(each, weight, 1.0) for each in others)
    chosen = routing.choose(weight, 1.0, origin="agent", draw=draw)
    assert (chosen == home) == (routing.expected_wait(home, weight, 1.0) <= MAX_WAIT_RATIO * best)
    assert routing.choose(weight, 1.0, origin="agent", draw=draw) == chosen  # which is its home from now on


@given(speeds=SPEEDS, work=WORK, weight=st.floats(0.01, 10.0), holders=st.lists(PLACES, max_size=4), draw=DRAWS)
def test_a_prefix_that_few_have_goes_to_the_less_loaded_of_them_up_to_the_cap(
    speeds: list[float], work: list[float], weight: float, holders: list[int], draw: tuple[float, float]
) -> None:
    routing = loaded(speeds, work)
    for holder in holders:
        others = [each for each in range(ENDPOINTS) if each != holder]
        assert routing.choose(weight, 1.0, prefixes=["text"], exclude=others, draw=draw) == holder
    waits = [routing.expected_wait(each, weight, 1.0) for each in range(ENDPOINTS)]
    cap = (1.0 + MAX_OVERLOAD) * sum(waits) / ENDPOINTS
    few = {holder for holder in holders if waits[holder] <= cap} if 2 * len(set(holders)) <= ENDPOINTS else set[int]()
    able = few or set(range(ENDPOINTS))
    expected = deepcopy(routing).choose(weight, 1.0, exclude=set(range(ENDPOINTS)) - able, draw=draw)
    assert routing.choose(weight, 1.0, prefixes=["text"], draw=draw) == expected


@given(agents=st.integers(1, 500), seed=SEEDS)
def test_agents_with_one_prefix_are_spread_as_evenly_as_agents_without(agents: int, seed: int) -> None:
    routing, random = Routing("abcd"), Random(seed)
    for _ in range(agents):
        endpoint = routing.choose(1.0, 0.0, prefixes=["text"], draw=(random.random(), random.random()))
        assert endpoint is not None
        routing.sent(endpoint, 1.0, 0.0)
    found = [routing.requests(each) for each in range(4)]
    assert max(found) - min(found) <= 20  # chance alone, with one drawn of four, makes it 40


@settings(max_examples=20)
@given(endpoints=st.integers(5, 80), seed=SEEDS)
def test_of_many_endpoints_each_gets_its_share(endpoints: int, seed: int) -> None:
    routing, random = Routing([str(each) for each in range(endpoints)]), Random(seed)
    for _ in range(20 * endpoints):
        endpoint = routing.choose(1.0, 0.0, draw=(random.random(), random.random()))
        assert endpoint is not None
        routing.sent(endpoint, 1.0, 0.0)
    found = [routing.requests(each) for each in range(endpoints)]
    assert min(found) >= 10  # chance alone, with one drawn, leaves some with less
    assert max(found) <= 30


@given(work=WORK, weight=st.floats(0.01, 10.0), draw=DRAWS)
def test_without_ties_the_most_loaded_endpoint_is_never_chosen(
    work: list[float], weight: float, draw: tuple[float, float]
) -> None:
    routing = loaded([1.0] * ENDPOINTS, work)
    waits = [routing.expected_wait(each, weight, 1.0) for each in range(ENDPOINTS)]
    chosen = routing.choose(weight, 1.0, draw=draw)
    assert chosen is not None
    assert waits[chosen] < max(waits) or waits.count(max(waits)) > 1


@dataclass
class Shared:
    """Engines that work on all their requests at once. Below `knee` of them, one more slows nobody down."""

    speeds: list[float]
    knee: int
    routing: Routing
    random: Random
    now: float = 0.0

    def __post_init__(self) -> None:
        self.running: list[dict[Ticket, tuple[float, int]]] = [{} for _ in self.speeds]
        """What is left of each, and whose it is."""

    def send(self, agent: int, *, sticks: bool) -> int:
        weight = self.random.uniform(0.5, 1.5)
        draw = (self.random.random(), self.random.random())
        endpoint = self.routing.choose(weight, self.now, origin=agent if sticks else None, draw=draw)
        assert endpoint is not None
        self.running[endpoint][self.routing.sent(endpoint, weight, self.now)] = (weight, agent)
        return endpoint

    def step(self) -> list[int]:
        """Until the next is answered: whose it was."""
        rates = [speed / max(self.knee, len(running)) for speed, running in zip(self.speeds, self.running, strict=True)]
        seconds = min(left / rate for rate, run in zip(rates, self.running, strict=True) for left, _ in run.values())
        self.now += seconds
        answered: list[int] = []
        for rate, running in zip(rates, self.running, strict=True):
            for ticket, (left, agent) in list(running.items()):
                running[ticket] = (left - rate * seconds, agent)
                if running[ticket][0] <= 1e-9:
                    del running[ticket]
                    self.routing.done(ticket, self.now)
                    answered.append(agent)
        return answered


@pytest.mark.slow
@settings(max_examples=12)
@given(place=st.integers(0, 3), agents=st.sampled_from([32, 64]), seed=SEEDS)
def test_a_slow_endpoint_of_four_costs_only_its_part_of_the_throughput(place: int, agents: int, seed: int) -> None:
    speeds = [1.0] * 4
    speeds[place] = 0.25
    engines = Shared(speeds, 1, Routing("abcd"), Random(seed))
    for agent in range(agents):
        engines.send(agent, sticks=False)
    answered = 0
    while answered < 20 * agents:
        ended = engines.step()
        answered += len(ended)
        for agent in ended:
            engines.send(agent, sticks=False)
    assert answered / engines.now >= 0.85 * 3.25


@settings(max_examples=12)
@given(agents=st.integers(4, 64), knee=st.sampled_from([1, 16]), seed=SEEDS)
def test_agents_rarely_change_between_equal_endpoints(agents: int, knee: int, seed: int) -> None:
    engines = Shared([1.0] * 4, knee, Routing("abcd"), Random(seed))
    homes = [engines.send(agent, sticks=True) for agent in range(4 * (agents // 4))]
    moves = turns = 0
    while turns < 600:
        for agent in engines.step():
            turns += 1
            before, homes[agent] = homes[agent], engines.send(agent, sticks=True)
            moves += before != homes[agent]
    assert moves <= 0.05 * turns


@settings(max_examples=12)
@given(agents=st.integers(20, 60), seed=SEEDS)
def test_an_endpoint_measured_only_under_low_load_gets_its_share(agents: int, seed: int) -> None:
    routing = Routing("ab")
    engines = Shared([1.0, 1.0], 16, routing, Random(seed), now=16.0)
    routing.done(routing.sent(1, 1.0, 0.0), 16.0)
    routing.drain(1)
    answered = 0
    for agent in range(agents):
        engines.send(agent, sticks=False)
    while answered < 25 * agents:
        ended = engines.step()
        answered += len(ended)
        if answered >= 5 * agents:
            routing.undrain(1)
        for agent in ended:
            engines.send(agent, sticks=False)
    assert min(routing.requests(0), routing.requests(1)) >= 0.3 * agents
