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
_INFINITE = float("inf")
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
    speed: float | None = None
    """None while unknown."""
    usual_work: float | None = None
    """Mean weight in flight while the speed was measured."""
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

    def max_speed(self, now: float) -> float:
        """Upper bound of the speed: if it were faster, more would have been answered by now. Infinite if unknown."""
        if self.work <= 0:
            return _INFINITE
        answered = seconds = 0.0
        if self.requests:
            seconds = self._silent
            if now > self._updated_at:
                seconds += now - self._updated_at
        if self.speed is None:
            answered, seconds = self._answered, self._seconds + seconds
        return (answered + self.work) / seconds if seconds > 0 else _INFINITE

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
        if self.speed is not None or self._is_round_over:
            seconds = max(_TICK, self._seconds)
            self.speed, self.usual_work = self._answered / seconds, self._work_seconds / seconds
        self.ended(weight, now)

    @property
    def _is_round_over(self) -> bool:
        if self._seconds <= 0 or self._answered <= 0:
            return False
        return self._answered * self._seconds >= _ROUND_SHARE * self._work_seconds

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
        speed, usual_work = load.speed, load.usual_work  # no calls: this is computed for 64 endpoints per request
        if speed is None:
            speed = self.speed
        elif usual_work and self.usual_work > usual_work:
            correction = self.usual_work / usual_work
            speed *= correction if correction < _MAX_CORRECTION else _MAX_CORRECTION
        max_speed = load.max_speed(now)
        return (load.work + weight) / (speed if speed < max_speed else max_speed)
