"""How many requests may be in flight when the user names no number: additive growth, halved on a 429."""

from dataclasses import dataclass

_CEILING = 1024


@dataclass(slots=True)
class InflightLimit:
    """Grows by one for each full round of successes while the limit binds; one cut per episode of refusals."""

    current: int
    fixed: bool
    _successes: int = 0
    _quiet_until: float = 0.0

    def succeeded(self, *, limit_binds: bool) -> int | None:
        """A request went well. The new limit, if it changes."""
        if self.fixed or not limit_binds or self.current >= _CEILING:
            return None
        self._successes += 1
        if self._successes < self.current:
            return None
        self._successes = 0
        self.current += 1
        return self.current

    def refused(self, now: float, retry_after: float | None) -> int | None:
        """The server asked for less. Refusals of requests sent before the cut took effect count as the same episode."""
        self._successes = 0
        if now < self._quiet_until:
            return None
        self._quiet_until = now + max(1.0, retry_after or 0.0)
        self.current = max(1, self.current // 2)
        return self.current
