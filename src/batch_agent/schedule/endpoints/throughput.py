"""Throughput of an endpoint, measured from its answers, and the wait that further work can expect there."""

from collections.abc import Iterable
from math import exp

from ...core.fast_dataclass import dataclass

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

    def began(self, weight: float, now: float) -> None:
        if now > self._updated_at:
            self._advance(now)
        self.work += weight
        self.requests += 1

    def answered(self, weight: float, seconds: float, now: float) -> None:
        """A request was answered after `seconds`."""
        # No further calls than needed: this is computed for each request.
        latency = seconds if self._latency is None else self._latency
        self._latency = latency + (seconds - latency) / _AVERAGED_REQUESTS
        if self._silent or now > self._updated_at:  # of several answers at once only the first has waited
            self._decay(now, self._latency)
        self._answered += weight
        if self.speed is not None or self._is_round_over:
            measured = self._seconds if self._seconds > _TICK else _TICK
            self.speed, self.usual_work = self._answered / measured, self._work_seconds / measured
        self._end(weight)

    def _decay(self, now: float, latency: float) -> None:
        """The time since the last answer counts, and what was measured before counts less."""
        silent = self._silent
        if now > self._updated_at:
            silent += now - self._updated_at
            self._silent_work += (now - self._updated_at) * self.work
            self._updated_at = now
        kept = exp(-silent / (_MEMORY_LATENCIES * (latency if latency > silent else silent)))
        self._answered *= kept
        self._seconds = self._seconds * kept + silent
        self._work_seconds = self._work_seconds * kept + self._silent_work
        self._silent = self._silent_work = 0.0

    @property
    def _is_round_over(self) -> bool:
        if self._seconds <= 0 or self._answered <= 0:
            return False
        return self._answered * self._seconds >= _ROUND_SHARE * self._work_seconds

    def ended(self, weight: float, now: float) -> None:
        """A request ended without information about the speed. Time with only such requests does not count."""
        self._advance(now)
        self._end(weight)

    def expected_wait(self, weight: float, now: float, mean: "MeanThroughput") -> float:
        """Seconds until further work of this weight would be done here. `mean`: of all endpoints."""
        # No calls: this is computed for several endpoints per request.
        speed, usual_work, work = self.speed, self.usual_work, self.work
        seconds = self._silent + now - self._updated_at
        if speed is None:
            speed, seconds, done = mean.speed, seconds + self._seconds, self._answered + work
        else:
            done = work
            if usual_work and mean.usual_work > usual_work:
                correction = mean.usual_work / usual_work
                speed *= correction if correction < _MAX_CORRECTION else _MAX_CORRECTION
        if work > 0 and speed * seconds > done:  # then more would have been answered by now
            speed = done / seconds
        return (work + weight) / speed

    def _advance(self, now: float) -> None:
        if now > self._updated_at:
            if self.requests:
                passed = now - self._updated_at
                self._silent += passed
                self._silent_work += passed * self.work
            self._updated_at = now

    def _end(self, weight: float) -> None:
        self.requests -= 1
        if self.requests:
            self.work = self.work - weight if self.work > weight else 0.0  # rounding errors add up
        else:
            self.work = self._silent = self._silent_work = 0.0


@dataclass(slots=True)
class MeanThroughput:
    """Averages over all endpoints whose speed is known, used for endpoints of which too little is known."""

    speed: float = 1.0
    """1 while no speed is known, so that only the work in flight distinguishes endpoints."""
    usual_work: float = 0.0
    endpoints: int = 0
    """Number of endpoints whose speed is known."""

    @classmethod
    def of(cls, endpoints: Iterable[Throughput]) -> "MeanThroughput":
        known = [(each.speed, each.usual_work or 0.0) for each in endpoints if each.speed is not None]
        if not known:
            return cls()
        speeds, work = zip(*known, strict=True)
        return cls(sum(speeds) / len(known), sum(work) / len(known), len(known))

    def update(self, endpoint: Throughput, speed: float, usual_work: float) -> None:
        """An endpoint has answered. `speed` and `usual_work`: its values before."""
        if endpoint.speed is not None and endpoint.usual_work is not None:
            self.speed += (endpoint.speed - speed) / self.endpoints
            self.usual_work += (endpoint.usual_work - usual_work) / self.endpoints
