"""Throughput of an endpoint, measured from its answers, and the wait that further work can expect there."""

from collections.abc import Collection
from math import exp

from ..core.fast_dataclass import dataclass

_MEMORY_LATENCIES = 4.0
"""Memory of the estimate, in request latencies. A few rounds of answers: one long answer moves the speed little, and a
server that has become slow is recognized within as many rounds."""
_AVERAGED_REQUESTS = 8
"""Requests over which the latency is averaged. It only sets the memory, so a rough number is enough."""
_ROUND_SHARE = 0.5
"""Share of the work in flight that must be answered before the speed is known. Until then, a server that processes many
requests concurrently looks far slower than it is, since most of its work is started but not finished."""
_TICK = 1e-6
"""Seconds. Shorter times are rounded up to this, the resolution of the clock, so that no speed is infinite."""
_MAX_CORRECTION = 2.0
"""Largest correction of a speed that was measured at low load. Below its capacity an engine does twice the work in the
same time, so an endpoint that had less work than usual is assumed to be faster than measured, in proportion. Without
the correction, an endpoint with more work looks faster and receives even more; with a larger one, a slow endpoint would
receive more than twice the work it can do."""


@dataclass(slots=True)
class Throughput:
    """Speed of one endpoint: answered weight per second while there is work. Both decay with time rather than with the
    number of answers: answers come in bursts, and the last of a burst would seem to have taken no time."""

    work: float = 0.0
    """Weight in flight."""
    requests: int = 0
    """Requests in flight."""
    _is_known: bool = False
    _answered: float = 0.0
    _seconds: float = 0.0
    _work_seconds: float = 0.0
    """Integral of the work in flight over `_seconds`."""
    _latency: float | None = None
    _updated_at: float = 0.0
    """When the state was last updated."""
    _silent: float = 0.0
    """Seconds with work in flight since the last answer."""
    _silent_work: float = 0.0

    @property
    def speed(self) -> float | None:
        return self._answered / max(_TICK, self._seconds) if self._is_known else None

    @property
    def usual_work(self) -> float | None:
        """Mean weight in flight while the speed was measured."""
        return self._work_seconds / max(_TICK, self._seconds) if self._is_known else None

    def max_speed(self, now: float) -> float:
        """Upper bound of the speed: if it were faster, more would have been answered by now. Infinite if unknown."""
        silent = self._silence(now)
        answered, seconds = (0.0, silent) if self._is_known else (self._answered, self._seconds + silent)
        return (answered + self.work) / seconds if self.work > 0 and seconds > 0 else float("inf")

    def began(self, weight: float, now: float) -> None:
        self._advance(now)
        self.work += weight
        self.requests += 1

    def answered(self, weight: float, seconds: float, now: float) -> None:
        """A request was answered after `seconds`."""
        self._advance(now)
        if self._latency is None:
            self._latency = seconds
        self._latency += (seconds - self._latency) / _AVERAGED_REQUESTS
        memory = _MEMORY_LATENCIES * max(self._latency, self._silent)
        kept = exp(-self._silent / memory) if memory > 0 else 1.0
        self._answered = self._answered * kept + weight
        self._seconds = self._seconds * kept + self._silent
        self._work_seconds = self._work_seconds * kept + self._silent_work
        self._silent = self._silent_work = 0.0
        if self._seconds > 0 and self._answered > 0:
            is_round_over = self._answered * self._seconds >= _ROUND_SHARE * self._work_seconds
            self._is_known = self._is_known or is_round_over
        self.ended(weight, now)

    def ended(self, weight: float, now: float) -> None:
        """A request ended without information about the speed. Time with only such requests does not count."""
        self._advance(now)
        self.requests -= 1
        self.work = max(0.0, self.work - weight) if self.requests else 0.0  # rounding errors add up
        if not self.requests:
            self._silent = self._silent_work = 0.0

    def _advance(self, now: float) -> None:
        passed = max(0.0, now - self._updated_at) if self.requests else 0.0
        self._silent += passed
        self._silent_work += passed * self.work
        self._updated_at = max(self._updated_at, now)

    def _silence(self, now: float) -> float:
        return self._silent + max(0.0, now - self._updated_at) if self.requests else 0.0


@dataclass(frozen=True, slots=True)
class EndpointStats:
    """Averages over all endpoints, used for endpoints of which too little is known."""

    speed: float
    """Mean of the known speeds; 1 while none is known, so that only the work in flight distinguishes endpoints."""
    usual_work: float

    @classmethod
    def of(cls, known: Collection[tuple[float, float]]) -> "EndpointStats":
        """`known`: speed and usual work of each endpoint whose speed is known."""
        if not known:
            return cls(1.0, 0.0)
        return cls(sum(speed for speed, _ in known) / len(known), sum(work for _, work in known) / len(known))

    def expected_wait(self, load: Throughput, weight: float, now: float) -> float:
        """Seconds until further work of this weight would be done at the endpoint."""
        speed = self._observed_speed(load)
        if load.usual_work:
            speed *= min(_MAX_CORRECTION, max(1.0, self.usual_work / load.usual_work))
        return (load.work + weight) / min(speed, load.max_speed(now))

    def _observed_speed(self, load: Throughput) -> float:
        return self.speed if load.speed is None else load.speed
