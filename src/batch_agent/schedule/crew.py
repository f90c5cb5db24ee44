"""What to expect of each endpoint, seen beside the others."""

from collections.abc import Iterable

from ..core.quick import dataclass
from .throughput import Throughput

_DOUBT = 2.0
"""An engine with little to do answers little: below its capacity twice the work is done in the same time. One that
had less to do than is usual was not seen at its best, and is taken to be faster than it was, in proportion, by up to
this. Without it who has more work looks faster and gets still more; a larger one would send a truly slow endpoint
more than twice what it can do in the time of the others."""


@dataclass(frozen=True, slots=True)
class Crew:
    """What endpoints are like on the whole, for those of which too little is known."""

    speed: float
    """The mean of those that are known; 1 before any is, when only the work that they have tells them apart."""
    usual_work: float

    @classmethod
    def of(cls, loads: Iterable[Throughput]) -> "Crew":
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
