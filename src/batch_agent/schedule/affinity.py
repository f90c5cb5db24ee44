"""Affinity of agents and prompt prefixes to the endpoints that have them in their KV cache."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

MAX_WAIT_RATIO = 4.0
"""An agent stays at the endpoint that has its context until the expected wait there is this many times the wait
elsewhere. Moving an agent recomputes a context of several turns, delays the requests of the other endpoint, and leaves
the old context in the cache of the first one. That costs a few turns' work; a queue a few times longer costs less."""

MAX_OVERLOAD = 0.25
"""A prompt goes to an endpoint that has its prefix while the load there exceeds the mean by no more than this share.
A quarter is usual for consistent hashing with bounded loads: a smaller value scatters prefixes at every fluctuation, a
larger one lets a popular prefix build a queue while other endpoints idle, and recomputing a prefix is cheaper."""

_MAX_PREFIXES = 4096
"""Prefixes remembered, most recently used. Engines cache fewer than this, so older ones have been evicted. The table
takes less than a megabyte."""


@dataclass(slots=True)
class Affinity:
    """Remembers which endpoint served which agent and prefix, and prefers it while the load allows. `waits` maps each
    endpoint that may receive the work to its expected wait in seconds."""

    _homes: dict[Hashable, int] = field(default_factory=dict)
    _holders: dict[Hashable, set[int]] = field(default_factory=dict)
    """Endpoints that served each prefix, least recently used prefix first."""

    def home(self, origin: Hashable | None) -> int | None:
        return None if origin is None else self._homes.get(origin)

    def should_stay(self, home: int, waits: Mapping[int, float]) -> bool:
        return waits[home] <= MAX_WAIT_RATIO * min(waits.values())

    def candidates(self, prefix: Hashable | None, waits: Mapping[int, float]) -> Mapping[int, float]:
        """The endpoints that served the prefix and are below the load cap, or all endpoints if there are none. For a
        prefix that every endpoint has served, the load alone decides."""
        holders = self._holders.get(prefix, ())
        cap = (1.0 + MAX_OVERLOAD) * sum(waits.values()) / max(1, len(waits))
        return {endpoint: wait for endpoint, wait in waits.items() if endpoint in holders and wait <= cap} or waits

    def record(self, endpoint: int, origin: Hashable | None, prefix: Hashable | None) -> None:
        """Records that the work went to this endpoint."""
        if origin is not None:
            self._homes[origin] = endpoint
        if prefix is not None:
            self._holders[prefix] = self._holders.pop(prefix, set()) | {endpoint}
            if len(self._holders) > _MAX_PREFIXES:
                del self._holders[next(iter(self._holders))]

    def forget(self, origin: Hashable) -> None:
        self._homes.pop(origin, None)
