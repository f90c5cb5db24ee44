"""Routing: which endpoint gets the next piece of work. Time and random numbers are arguments; nothing here waits.

Agents and prompt prefixes have an affinity to the endpoints that hold them in their KV cache. Work has a weight, in a
unit of the caller's choice (tokens, prompts), the same for all of a Routing.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import field

from ...core.fast_dataclass import dataclass
from .affinity import Affinity
from .circuit_breaker import CircuitBreaker
from .throughput import MeanThroughput, Throughput

MAX_WAIT_RATIO = 4.0
"""An agent stays at the endpoint that has its context until the expected wait there is this many times the wait
elsewhere. Moving an agent recomputes a context of several turns, delays the requests of the other endpoint, and leaves
the old context in the cache of the first one. That costs a few turns' work; a queue a few times longer costs less."""

_FEW_REQUESTS = 16
"""Requests in flight below which an endpoint is not busy: an engine answers so many at once nearly as fast as one. With
8, every endpoint that joined drew agents away from their contexts (benchmarks/routing.py)."""
_MANY_ENDPOINTS = 8
"""Among more endpoints than this, one is nearly always idle, and agents would move for nothing."""
_MAX_CONSIDERED = 4
"""Endpoints among which one is chosen, at random, and as many that have the prefix of the prompt. Two are nearly as
good as all; the rest show the mean and the shortest wait. With 64, hit rates and waits were the same, and a request
took three times the CPU (benchmarks/routing.py)."""
_ANSWERS_AVERAGED = 4
"""Answers per endpoint after which the averages over all endpoints are summed up again, against rounding errors."""


Ticket = int
"""Number of a piece of work in flight."""


@dataclass(slots=True)
class _Endpoint:
    name: str
    load: Throughput = field(default_factory=Throughput)
    breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    is_draining: bool = False

    def allows(self, now: float) -> bool:
        return not self.is_draining and self.breaker.allows(now)


class Routing:
    """Endpoints are identified by their index. Each `sent` returns a ticket that must be passed to `done`, `failed` or
    `abandoned`.

    Work goes to the endpoint that has its context, else to the better of two random endpoints, among those that have
    most of its beginning if there are any. An agent whose text has moved behind other references has no context
    anywhere: it stays unless another endpoint has more of its new beginning. Call `sent` right after `choose`: only
    then the work counts."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._endpoints = [_Endpoint(name) for name in endpoints]
        self._in_service = dict(enumerate(self._endpoints))
        """The endpoints that have not left, by index."""
        self._order = list(self._in_service)
        self._unhealthy: set[int] = set()
        """The endpoints in service that are draining or were ejected."""
        self._suspects: set[int] = set()
        """The endpoints whose breaker remembers a fault: only there an answer changes it."""
        self._mean = MeanThroughput.of(())
        self._answers = 0
        """Answers since the averages were summed up."""
        self._max_answers = _ANSWERS_AVERAGED
        """Answers after which they are summed up again."""
        self.on_drained: Callable[[int], None] | None = None
        """Called when a draining endpoint has no work in flight any more."""
        self._affinity = Affinity()
        self._sent: dict[Ticket, tuple[int, float, float]] = {}
        """Endpoint, weight and time of the work in flight."""
        self._last = 0

    def __len__(self) -> int:
        return len(self._endpoints)

    def name(self, endpoint: int) -> str:
        return self._endpoints[endpoint].name

    def add(self, name: str) -> int:
        """A further endpoint joins. Returns its index."""
        index = len(self._endpoints)
        self._endpoints.append(_Endpoint(name))
        self._in_service[index] = self._endpoints[index]
        self._order.append(index)
        return index

    def leave(self, endpoint: int) -> None:
        """A drained endpoint is gone, with its KV cache. Its index stays its own."""
        if self._in_service.pop(endpoint, None) is not None:
            self._order.remove(endpoint)
            self._update_health(endpoint)
            self._average()
        self._affinity.forget_endpoint(endpoint)

    def rejoin(self, endpoint: int) -> None:
        """An endpoint that had left is back. Nothing that was known about it holds any more."""
        self._endpoints[endpoint] = self._in_service[endpoint] = _Endpoint(self.name(endpoint))
        self._order.append(endpoint)
        self._update_health(endpoint)

    def work(self, endpoint: int) -> float:
        """Weight in flight."""
        return self._endpoints[endpoint].load.work

    def requests(self, endpoint: int) -> int:
        """Requests in flight."""
        return self._endpoints[endpoint].load.requests

    def speed(self, endpoint: int) -> float | None:
        """Weight per second while the endpoint has work; None while unknown."""
        return self._endpoints[endpoint].load.speed

    def choose(
        self,
        weight: float,
        now: float,
        *,
        prefixes: Sequence[Hashable] = (),
        origin: Hashable | None = None,
        exclude: Collection[int] = (),
        draw: tuple[float, float],
    ) -> int | None:
        """The endpoint for a piece of work, or None if none is available. `origin`: the agent, whose context is at the
        endpoint that served it last; `prefixes`: beginnings of its prompt that others may share, the longest first;
        `draw`: two random numbers in [0, 1)."""
        affinity = self._affinity
        last = affinity.homes.get(origin)
        if last is not None and origin in affinity.assigned and self._may_get(last[0], now, exclude):
            chosen: int | None = last[0]  # whatever the load
        elif exclude or self._unhealthy or (chosen := self._choose_of_two(last, weight, now, prefixes, draw)) is None:
            chosen = self._choose_of_several(last, weight, now, prefixes, exclude, draw)
        if chosen is not None:
            affinity.record(chosen, origin, prefixes)
        return chosen

    def _choose_of_two(
        self,
        last: tuple[int, Hashable | None] | None,
        weight: float,
        now: float,
        prefixes: Sequence[Hashable],
        draw: tuple[float, float],
    ) -> int | None:
        """The choice when all endpoints are healthy and two random ones are enough for it: of an agent that is new, and
        whose prefix matters to none or most of them, and of one that stays. None if more have to be considered."""
        order, endpoints, mean = self._order, self._endpoints, self._mean
        count = len(order)
        if count < 2 or (last is None and prefixes and self._affinity.has_preference(prefixes, count)):
            return None
        first, second = int(draw[0] * count), int(draw[1] * (count - 1))
        one, other = order[first], order[second + (second >= first)]
        if last is None:
            wait = endpoints[one].load.expected_wait(weight, now, mean)
            return other if endpoints[other].load.expected_wait(weight, now, mean) < wait else one
        home, prefix = last
        if home not in self._in_service or prefix != (prefixes[0] if prefixes else None):
            return None
        compared = (one, other) if count > _MAX_CONSIDERED else order
        shortest = min([endpoints[each].load.expected_wait(weight, now, mean) for each in compared])
        stays = endpoints[home].load.expected_wait(weight, now, mean) <= MAX_WAIT_RATIO * shortest
        return home if stays else None

    def _choose_of_several(
        self,
        last: tuple[int, Hashable | None] | None,
        weight: float,
        now: float,
        prefixes: Sequence[Hashable],
        exclude: Collection[int],
        draw: tuple[float, float],
    ) -> int | None:
        affinity, order = self._affinity, self._order
        if len(order) <= _MAX_CONSIDERED:
            waits = self._waits(order, weight, now, exclude)
        else:
            waits = self._waits(self._considered(last, prefixes, draw), weight, now, exclude)
            waits = waits or self._waits(order, weight, now, exclude)
            draw = draw[0] * len(order) % 1.0, draw[1] * len(order) % 1.0  # the digits that are not used yet
        if last is not None and self._should_stay(last, weight, waits, prefixes):
            return last[0]
        return _better_of_two(affinity.candidates(prefixes, waits, len(order)) if prefixes else waits, draw)

    def sent(self, endpoint: int, weight: float, now: float) -> Ticket:
        ticket = self._last = self._last + 1
        self._sent[ticket] = endpoint, weight, now
        self._endpoints[endpoint].load.began(weight, now)
        if endpoint in self._unhealthy:
            self._endpoints[endpoint].breaker.on_sent(ticket)
        return ticket

    def done(self, ticket: Ticket, now: float) -> None:
        index, weight, sent_at = self._sent.pop(ticket)
        load = self._endpoints[index].load
        speed, usual_work = load.speed, load.usual_work
        load.answered(weight, now - sent_at, now)
        self._answers += 1
        if self._answers >= self._max_answers or (speed is None and load.speed is not None):
            self._average()
        elif speed is not None and usual_work is not None:
            self._mean.update(load, speed, usual_work)
        if index in self._suspects:
            self._endpoints[index].breaker.on_answer(ticket)
            self._update_health(index)
        if index in self._unhealthy:
            self._check_drained(index)

    def failed(
        self,
        ticket: Ticket,
        now: float,
        *,
        is_endpoint_fault: bool,
        is_refused: bool = False,
        is_passing: bool = False,
    ) -> None:
        """The work failed. A fault that is not the endpoint's, like a prompt that is too long, shows that it is up.
        `is_refused`: the connection was refused; `is_passing`: an error that a healthy endpoint may return
        occasionally."""
        index, endpoint = self._close(ticket, now)
        if is_endpoint_fault:
            others = endpoint.load.requests if is_passing else None
            endpoint.breaker.on_failure(ticket, now, self._last, is_refused=is_refused, other_requests=others)
        else:
            endpoint.breaker.on_answer(ticket)
        self._update_health(index)
        self._check_drained(index)

    def abandoned(self, ticket: Ticket, now: float) -> None:
        """The caller no longer waits for the work. May be called for a ticket that is done."""
        if ticket in self._sent:
            index, endpoint = self._close(ticket, now)
            endpoint.breaker.on_abandoned(ticket)
            self._check_drained(index)

    def blame(self, endpoint: int, ticket: Ticket, now: float) -> None:
        """A failure that was reported for this ticket turned out to be the endpoint's fault."""
        self._endpoints[endpoint].breaker.on_failure(ticket, now, self._last, is_refused=False)
        self._update_health(endpoint)

    def home(self, origin: Hashable) -> int | None:
        """The endpoint that has the context of an agent, if known."""
        last = self._affinity.homes.get(origin)
        return None if last is None else last[0]

    def assign(self, origin: Hashable, endpoint: int) -> None:
        """The agent's work goes to this endpoint while it is available, and then to the one that took over."""
        self._affinity.assign(origin, endpoint)

    def forget_origin(self, origin: Hashable) -> None:
        """The agent has ended."""
        self._affinity.homes.pop(origin, None)
        self._affinity.assigned.discard(origin)

    def drain(self, endpoint: int) -> None:
        """Sends nothing new to the endpoint; work in flight continues."""
        self._endpoints[endpoint].is_draining = True
        self._update_health(endpoint)
        self._check_drained(endpoint)

    def undrain(self, endpoint: int) -> None:
        self._endpoints[endpoint].is_draining = False
        self._update_health(endpoint)

    def is_up(self, endpoint: int) -> bool:
        """False for an endpoint that was ejected, until a probe succeeds."""
        return self._endpoints[endpoint].breaker.is_closed

    @property
    def is_any_up(self) -> bool:
        """Whether any endpoint in service is up and not draining."""
        return len(self._unhealthy) < len(self._in_service)

    def is_healthy(self, endpoint: int) -> bool:
        """Whether the endpoint is up and not draining."""
        return endpoint in self._in_service and endpoint not in self._unhealthy

    def is_draining(self, endpoint: int) -> bool:
        return self._endpoints[endpoint].is_draining

    def available(self, now: float) -> list[int]:
        return [index for index, endpoint in self._in_service.items() if endpoint.allows(now)]

    def is_available(self, endpoint: int, now: float) -> bool:
        return endpoint in self._in_service and self._endpoints[endpoint].allows(now)

    def expected_wait(self, endpoint: int, weight: float, now: float) -> float:
        """Seconds until further work of this weight would be done at the endpoint. While no speed is known, only
        comparable with that of other endpoints."""
        return self._endpoints[endpoint].load.expected_wait(weight, now, self._mean)

    def _may_get(self, endpoint: int, now: float, exclude: Collection[int]) -> bool:
        return endpoint not in exclude and self.is_available(endpoint, now)

    def _should_stay(
        self,
        last: tuple[int, Hashable | None],
        weight: float,
        waits: dict[int, float],
        prefixes: Sequence[Hashable],
    ) -> bool:
        """Whether the work goes to the endpoint that served its agent last. An endpoint where the wait is too long is
        removed from `waits`. An agent whose own text stands behind another prefix than last time has to be computed
        again wherever it goes."""
        home, prefix = last
        if home not in waits:
            return False
        has_moved = prefix != (prefixes[0] if prefixes else None)
        if has_moved and home not in self._affinity.candidates(prefixes, waits, len(self._order)):
            return False
        if waits[home] <= MAX_WAIT_RATIO * min(waits.values()) or self._is_light(home, weight, waits):
            return True
        del waits[home]
        return False

    def _is_light(self, home: int, weight: float, waits: Mapping[int, float]) -> bool:
        """Whether an endpoint of many has little work, and is not several times slower than another one."""
        if len(self._order) <= _MANY_ENDPOINTS or self._endpoints[home].load.requests >= _FEW_REQUESTS:
            return False
        endpoints, wait = self._endpoints, waits[home]
        limit = MAX_WAIT_RATIO * (endpoints[home].load.work + weight) / wait if wait else 0.0
        return all(endpoints[each].load.work + weight <= limit * wait for each, wait in waits.items() if wait)

    def _update_health(self, index: int) -> None:
        """The endpoint failed, answered after a fault, or left, or its draining began or ended."""
        endpoint = self._endpoints[index]
        is_in_service = index in self._in_service
        _put(self._unhealthy, index, is_in=is_in_service and (endpoint.is_draining or not endpoint.breaker.is_closed))
        _put(self._suspects, index, is_in=is_in_service and not endpoint.breaker.is_clean)

    def _check_drained(self, index: int) -> None:
        endpoint = self._endpoints[index]
        if endpoint.is_draining and self.on_drained is not None and not endpoint.load.requests:
            self.on_drained(index)

    def _average(self) -> None:
        self._mean = MeanThroughput.of([each.load for each in self._in_service.values()])
        self._answers, self._max_answers = 0, _ANSWERS_AVERAGED * len(self._in_service)

    def _waits(self, endpoints: Iterable[int], weight: float, now: float, exclude: Collection[int]) -> dict[int, float]:
        if exclude:
            endpoints = [each for each in endpoints if each not in exclude]
        known, mean, waits = self._endpoints, self._mean, dict[int, float]()
        if self._unhealthy:
            endpoints = [each for each in endpoints if each not in self._unhealthy or known[each].allows(now)]
        for each in endpoints:
            waits[each] = known[each].load.expected_wait(weight, now, mean)
        return waits

    def _considered(
        self, last: tuple[int, Hashable | None] | None, prefixes: Sequence[Hashable], draw: tuple[float, float]
    ) -> Collection[int]:
        """Some of many endpoints, at random, with the one that has the agent's context and some that have its
        prefixes."""
        found = _some(self._order, draw)
        if last is not None and last[0] in self._in_service:
            found.append(last[0])
        for prefix in prefixes:
            if holders := self._affinity.holders.get(prefix):
                if 2 * len(holders) <= len(self._order):  # otherwise the load decides
                    found += _some(list(holders), draw)
                break
        return found

    def _close(self, ticket: Ticket, now: float) -> tuple[int, _Endpoint]:
        index, weight, _ = self._sent.pop(ticket)
        endpoint = self._endpoints[index]
        endpoint.load.ended(weight, now)
        return index, endpoint


def _put(members: set[int], endpoint: int, *, is_in: bool) -> None:
    if is_in:
        members.add(endpoint)
    else:
        members.discard(endpoint)


def _some(endpoints: list[int], draw: tuple[float, float]) -> list[int]:
    """Up to _MAX_CONSIDERED of the endpoints: from a random one on, in steps of a random size."""
    count = len(endpoints)
    if count <= _MAX_CONSIDERED:
        return endpoints
    first, step = int(draw[0] * count), 1 + int(draw[1] * (count - 1))
    return [endpoints[at % count] for at in range(first, first + step * _MAX_CONSIDERED, step)]


def _better_of_two(waits: Mapping[int, float], draw: tuple[float, float]) -> int | None:
    """The better of two random endpoints. Several clients that do not know of each other's work would all choose the
    best endpoint at the same time."""
    endpoints = list(waits)
    if not endpoints:
        return None
    first = endpoints.pop(int(draw[0] * len(endpoints)))
    if not endpoints:
        return first
    second = endpoints[int(draw[1] * len(endpoints))]
    return second if waits[second] < waits[first] else first
