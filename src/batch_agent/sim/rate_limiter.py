"""Rate limiter of the simulated server: limits per minute, as hosted services enforce and report them."""

from .sim_config import RateLimits

_MINUTE = 60.0


class RateLimiter:
    """Token buckets for requests and tokens. Time is an argument."""

    def __init__(self, limits: RateLimits, now: float) -> None:
        self._reports = limits.headers
        self._burst = limits.burst_s / _MINUTE
        """What a bucket holds, as a share of its limit."""
        found = {"requests": limits.rpm, "tokens": limits.tpm}
        self._limits = {name: limit for name, limit in found.items() if limit is not None}
        self._used = dict.fromkeys(self._limits, 0.0)
        self._at = now
        self.refused = 0

    @property
    def is_limited(self) -> bool:
        return bool(self._limits)

    def retry_after(self, tokens: int, now: float) -> float | None:
        """Counts a request; None if it is accepted. Otherwise the seconds after which it would be."""
        costs, wait = {"requests": 1, "tokens": tokens}, 0.0
        for name, limit in self._limits.items():
            self._used[name] = max(0.0, self._used[name] - (now - self._at) * limit / _MINUTE)
            excess = min(costs[name], self._burst * limit) + self._used[name] - self._burst * limit
            wait = max(wait, excess * _MINUTE / limit)
        self._at = now
        if wait > 0:
            self.refused += 1
            return wait
        for name in self._limits:
            self._used[name] += costs[name]
        return None

    def headers(self) -> dict[str, str]:
        """Headers of a response, with OpenAI's names."""
        found: dict[str, str] = {}
        for name, limit in self._limits.items() if self._reports else ():
            used = self._used[name]
            found[f"x-ratelimit-limit-{name}"] = str(limit)
            found[f"x-ratelimit-remaining-{name}"] = str(max(0, int(limit - used)))
            found[f"x-ratelimit-reset-{name}"] = f"{round(used * _MINUTE / limit * 1000)}ms"
        return found
