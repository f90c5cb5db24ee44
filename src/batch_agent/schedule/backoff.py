"""Exponential backoff: how long to wait after a number of failures in a row."""

from ..core.fast_dataclass import dataclass

_MOST_DOUBLINGS = 60
"""Keeps the power within a float, whatever the number of failures."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays in seconds, which double with each failure up to the longest one."""

    first: float
    longest: float

    def delay(self, failures: int) -> float:
        """Seconds to wait after a failure with `failures` before it."""
        return min(self.longest, self.first * 2.0 ** min(failures, _MOST_DOUBLINGS))

    def jittered(self, failures: int, jitter: float) -> float:
        """From half of the delay to all of it. `jitter` is a number in [0, 1) that spreads clients apart."""
        return self.delay(failures) * (0.5 + jitter / 2)
