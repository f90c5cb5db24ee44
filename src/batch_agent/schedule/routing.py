"""Which of several endpoints gets the next piece of work. Time and random numbers are arguments; nothing here waits.

Work has a weight, in whatever unit its users count (tokens, prompts), the same for all of a Routing."""

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import field
from typing import NewType

from ..core.fast_dataclass import dataclass
from .affinity import Affinity
from .circuit_breaker import CircuitBreaker
from .throughput import EndpointStats, Throughput

Ticket = NewType("Ticket", int)


@dataclass(frozen=True, slots=True)
class _Sent:
    endpoint: int
    weight: float
    at: float


@dataclass(slots=True)
class _Endpoint:
    name: str
    load: Throughput = field(default_factory=Throughput)
    standing: CircuitBreaker = field(default_factory=CircuitBreaker)
    is_draining: bool = False

    @property
    def is_counted_on(self) -> bool:
        return self.standing.is_good and not self.is_draining

    def admits(self, now: float) -> bool:
        return not self.is_draining and self.standing.admits(now)


class Routing:
    """Endpoints are known by their place in the list. Each `sent` gives a ticket that must come back by one of `done`,
    `failed` and `left`.

    Work goes where its context is, else to the better of two that were drawn, of those that have its prefix if there
    are any. `sent` follows `choose` at once: only then the work counts."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._endpoints = [_Endpoint(name) for name in endpoints]
        self._affinity = Affinity()
        self._sent: dict[Ticket, _Sent] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._endpoints)

    def name(self, endpoint: int) -> str:
        return self._endpoints[endpoint].name

    def work(self, endpoint: int) -> float:
        """Weight under way."""
        return self._endpoints[endpoint].load.work

    def requests(self, endpoint: int) -> int:
        """Under way."""
        return self._endpoints[endpoint].load.requests

    def speed(self, endpoint: int) -> float | None:
        """Weight per second while it has work, as far as that is known."""
        return self._endpoints[endpoint].load.speed

    def choose(
        self,
        weight: float,
        now: float,
        *,
        prefix: Hashable | None = None,
        origin: Hashable | None = None,
        exclude: Collection[int] = (),
        draw: tuple[float, float],
    ) -> int | None:
        """None when nobody may be given it. `origin`: whose work it is, for an agent that comes again and has its
        context where it was last; `prefix`: what its prompt begins with, shared with others; `draw`: two random
        numbers in [0, 1)."""
        crew = self._crew
        waits = {
            each: crew.wait(self._endpoints[each].load, weight, now) for each in self.usable(now) if each not in exclude
        }
        chosen = self._choose(waits, origin, prefix, draw)
        if chosen is not None:
            self._affinity.settle(chosen, origin, prefix)
        return chosen

    def sent(self, endpoint: int, weight: float, now: float) -> Ticket:
        self._last += 1
        ticket = Ticket(self._last)
        self._sent[ticket] = _Sent(endpoint, weight, now)
        self._endpoints[endpoint].load.began(weight, now)
        self._endpoints[endpoint].standing.sent(ticket)
        return ticket

    def done(self, ticket: Ticket, now: float) -> None:
        sent = self._sent.pop(ticket)
        endpoint = self._endpoints[sent.endpoint]
        endpoint.load.answered(sent.weight, now - sent.at, now)
        endpoint.standing.answered(ticket)

    def failed(
        self,
        ticket: Ticket,
        now: float,
        *,
        is_endpoint_fault: bool,
        is_refused: bool = False,
        is_passing: bool = False,
    ) -> None:
        """A fault that is not the endpoint's, like a prompt that is too long, shows that it is there. `is_refused`:
        nobody took the connection; `is_passing`: it answered with an error, as a good one may now and then."""
        endpoint = self._close(ticket, now)
        if is_endpoint_fault:
            beside = endpoint.load.requests if is_passing else None
            endpoint.standing.faulted(ticket, now, is_refused=is_refused, beside=beside)
        else:
            endpoint.standing.answered(ticket)

    def left(self, ticket: Ticket, now: float) -> None:
        """Nobody waits for it any more. May be called for a ticket that has come back."""
        if ticket in self._sent:
            self._close(ticket, now).standing.left(ticket)

    def blame(self, endpoint: int, ticket: Ticket, now: float) -> None:
        """What went wrong with the work of this ticket, which has come back, turns out to be the endpoint's fault."""
        self._endpoints[endpoint].standing.faulted(ticket, now, is_refused=False)

    def forget_origin(self, origin: Hashable) -> None:
        """The agent does not come again."""
        self._affinity.forget(origin)

    def drain(self, endpoint: int) -> None:
        """It gets nothing new; what is under way goes on."""
        self._endpoints[endpoint].is_draining = True

    def undrain(self, endpoint: int) -> None:
        self._endpoints[endpoint].is_draining = False

    def is_good(self, endpoint: int) -> bool:
        """False for one that was ejected, until a probe has found it back."""
        return self._endpoints[endpoint].standing.is_good

    def is_counted_on(self, endpoint: int) -> bool:
        """Whether it is good, and not draining."""
        return self._endpoints[endpoint].is_counted_on

    def usable(self, now: float) -> list[int]:
        return [place for place, endpoint in enumerate(self._endpoints) if endpoint.admits(now)]

    def wait(self, endpoint: int, weight: float, now: float) -> float:
        """The load: seconds until further work of this weight would be done there. Only to be compared with that of
        others while no speed is known."""
        return self._crew.wait(self._endpoints[endpoint].load, weight, now)

    def _choose(
        self, waits: dict[int, float], origin: Hashable | None, prefix: Hashable | None, draw: tuple[float, float]
    ) -> int | None:
        home = self._affinity.home(origin)
        if home in waits:
            if self._affinity.stays(home, waits):
                return home
            del waits[home]
        return _better_of_two(self._affinity.among(prefix, waits), draw)

    @property
    def _crew(self) -> EndpointStats:
        return EndpointStats.of(endpoint.load for endpoint in self._endpoints)

    def _close(self, ticket: Ticket, now: float) -> _Endpoint:
        sent = self._sent.pop(ticket)
        endpoint = self._endpoints[sent.endpoint]
        endpoint.load.ended(sent.weight, now)
        return endpoint


def _better_of_two(waits: Mapping[int, float], draw: tuple[float, float]) -> int | None:
    """Of two different ones. Better than the best of all where several clients, who do not see each other's work,
    share the endpoints: those would all go to the same one."""
    places = list(waits)
    if not places:
        return None
    first = places.pop(min(int(draw[0] * len(places)), len(places) - 1))
    if not places:
        return first
    second = places[min(int(draw[1] * len(places)), len(places) - 1)]
    return second if waits[second] < waits[first] else first
