"""Clock of the simulated batches: real time, which tests can move forward."""

import time


class MovableClock:
    def __init__(self) -> None:
        self._ahead = 0.0

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time() + self._ahead

    def advance(self, seconds: float) -> None:
        self._ahead += seconds
