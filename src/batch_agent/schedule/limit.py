"""How many requests may be in flight: additive growth, halved on a 429."""

from dataclasses import dataclass, field

_CEILING = 1024
_LONGEST_EPISODE = 300.0


@dataclass(slots=True)
class InflightLimit:
    """Grows by one for each full round of successes while the limit binds; one cut per episode of refusals.
    A fixed one is cut too, and grows back to what it was."""

    current: int
    fixed: bool
    _successes: int = 0
    _quiet_until: float = float("-inf")
    _most: int = field(init=False)

    def __post_init__(self) -> None:
        self._most = self.current if self.fixed else max(self.current, _CEILING)

    def succeeded(self, *, limit_binds: bool) -> int | None:
        """A request went well. The new limit, if it changes."""
        if not limit_binds or self.current >= self._most:
            return None
        self._successes += 1
        if self._successes < self.current:
            return None
        self._successes = 0
        self.current += 1
        return self.current

    def refused(self, now: float, retry_after: float | None) -> int | None:
        """The server asked for less. The new limit, if it changes: refusals of requests sent before the cut took effect
        belong to the same episode."""
        self._successes = 0
        if now < self._quiet_until:
            return None
        self._quiet_until = now + min(max(1.0, retry_after or 0.0), _LONGEST_EPISODE)
        if self.current == 1:
            return None
        self.current //= 2
        return self.current
