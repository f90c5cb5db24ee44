"""Estimate of how long a context survives on the device after its request has ended."""

from collections import deque

WINDOW = 64
"""Number of recent returns that count. Fewer follow the load faster; more are steadier."""

CAUTION = 0.5
"""Safety factor: a pause that is predicted too short costs a context, one that is predicted too long only a second
copy."""


class DeviceResidency:
    """Estimate from returning sessions. Each was away for some time, after which the device either had its context or
    not.

    The estimate is half of the pause that best separates the two cases. Without returns it is zero, which assumes
    nothing."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._returns: deque[tuple[float, bool]] = deque(maxlen=WINDOW)

    def observe(self, pause_s: float, was_resident: bool) -> None:
        self._returns.append((pause_s, was_resident))
        self.seconds = CAUTION * self._separation()

    def _separation(self) -> float:
        """The pause up to which contexts were mostly resident: the one that is right for the most returns, the shortest
        in a tie."""
        right = best_right = sum(not was_resident for _, was_resident in self._returns)
        best = 0.0
        for pause_s, was_resident in sorted(self._returns):
            right += 1 if was_resident else -1
            if right > best_right:
                best, best_right = pause_s, right
        return best
