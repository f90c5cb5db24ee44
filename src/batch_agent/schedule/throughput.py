"""How much work an endpoint has under way, and how fast it gets it done. Time is an argument.

What to expect of each endpoint, seen beside the others.
"""

from collections.abc import Iterable
from math import exp

from ..core.fast_dataclass import dataclass

_MEMORY = 4.0
"""Times as long as a request takes: a few rounds of answers, so that one long answer moves the speed little, while a
server that became slow is believed within as many."""
_LATENCIES = 8
"""Requests over which the time they take is averaged: it only sets the memory, so a rough number will do."""
_ROUND = 0.5
"""Of the work it has under way at a time: before so much was answered, a server that works on much at once looks far
slower than it is, for most of its work is begun but not done."""
_TICK = 1e-6
"""Seconds. What seems to have taken less took that long: no clock is finer, and nobody infinitely fast."""


@dataclass(slots=True)
class Throughput:
    """Weight per second while there is work: the weight that was answered, and the time that it took, both fading
    with time. Not with answers: those come in bursts, and the last of a burst would seem to have taken no time."""

    work: float = 0.0
    """Weight under way."""
    requests: int = 0
    """Under way."""
    _is_known: bool = False
    _answered: float = 0.0
    _seconds: float = 0.0
    _work_seconds: float = 0.0
    """Work under way, summed over these seconds."""
    _latency: float | None = None
    _seen: float = 0.0
    """When it was last looked at."""
    _silent: float = 0.0
    """Seconds with work since the last answer."""
    _silent_work: float = 0.0

    @property
    def speed(self) -> float | None:
        return self._answered / max(_TICK, self._seconds) if self._is_known else None

    @property
    def usual_work(self) -> float | None:
        """Weight under way while the speed was measured."""
        return self._work_seconds / max(_TICK, self._seconds) if self._is_known else None

    def most(self, now: float) -> float:
        """A bound on its speed: were it faster, more would be answered by now. Infinite where nothing tells."""
        silent = self._silence(now)
        answered, seconds = (0.0, silent) if self._is_known else (self._answered, self._seconds + silent)
        return (answered + self.work) / seconds if self.work > 0 and seconds > 0 else float("inf")

    def began(self, weight: float, now: float) -> None:
        self._pass(now)
        self.work += weight
        self.requests += 1

    def answered(self, weight: float, seconds: float, now: float) -> None:
        """A request was answered, after so long."""
        self._pass(now)
        if self._latency is None:
            self._latency = seconds
        self._latency += (seconds - self._latency) / _LATENCIES
        memory = _MEMORY * max(self._latency, self._silent)
        kept = exp(-self._silent / memory) if memory > 0 else 1.0
        self._answered = self._answered * kept + weight
        self._seconds = self._seconds * kept + self._silent
        self._work_seconds = self._work_seconds * kept + self._silent_work
        self._silent = self._silent_work = 0.0
        if self._seconds > 0 and self._answered > 0:
            is_round_over = self._answered * self._seconds >= _ROUND * self._work_seconds
            self._is_known = self._is_known or is_round_over
        self.ended(weight, now)

    def ended(self, weight: float, now: float) -> None:
        """A request is over that tells nothing of the speed. The time spent on it alone does not count."""
        self._pass(now)
        self.requests -= 1
        self.work = max(0.0, self.work - weight) if self.requests else 0.0  # sums of floats leave dust
        if not self.requests:
            self._silent = self._silent_work = 0.0

    def _pass(self, now: float) -> None:
        passed = max(0.0, now - self._seen) if self.requests else 0.0
        self._silent += passed
        self._silent_work += passed * self.work
        self._seen = max(self._seen, now)

    def _silence(self, now: float) -> float:
        return self._silent + max(0.0, now - self._seen) if self.requests else 0.0


_DOUBT = 2.0
"""An engine with little to do answers little: below its capacity twice the work is done in the same time. One that
had less to do than is usual was not seen at its best, and is taken to be faster than it was, in proportion, by up to
this. Without it who has more work looks faster and gets still more; a larger one would send a truly slow endpoint
more than twice what it can do in the time of the others."""


@dataclass(frozen=True, slots=True)
class EndpointStats:
    """What endpoints are like on the whole, for those of which too little is known."""

    speed: float
    """The mean of those that are known; 1 before any is, when only the work that they have tells them apart."""
    usual_work: float

    @classmethod
    def of(cls, loads: Iterable[Throughput]) -> "EndpointStats":
        known = [(load.speed, load.usual_work) for load in loads if load.speed is not None]
        if not known:
            return cls(1.0, 0.0)
        return cls(sum(speed for speed, _ in known) / len(known), sum(work or 0.0 for _, work in known) / len(known))

    def wait(self, load: Throughput, weight: float, now: float) -> float:
        """Seconds until further work of this weight would be done there."""
        speed = self._seen(load)
        if load.usual_work:
            speed *= min(_DOUBT, max(1.0, self.usual_work / load.usual_work))
        return (load.work + weight) / min(speed, load.most(now))

    def _seen(self, load: Throughput) -> float:
        return self.speed if load.speed is None else load.speed
