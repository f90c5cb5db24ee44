"""Exponential backoff after consecutive failures."""

from ..core.fast_dataclass import dataclass

_MAX_DOUBLINGS = 60
"""Keeps the power within the range of a float for any number of failures."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays in seconds that double with each failure, up to a ceiling."""

    first: float
    ceiling: float

    def delay(self, failures: int) -> float:
        """Seconds to wait after a failure with `failures` before it."""
        return min(self.ceiling, self.first * 2.0 ** min(failures, _MAX_DOUBLINGS))

    def jittered(self, failures: int, jitter: float) -> float:
        """Half of the delay to the full delay. `jitter` is a random number in [0, 1) that spreads clients apart."""
        return self.delay(failures) * (0.5 + jitter / 2)
