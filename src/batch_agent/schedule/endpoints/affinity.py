"""Affinity of agents and prompt prefixes to the endpoints that hold them in their KV cache."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field

from ...core.fast_dataclass import dataclass

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

    homes: dict[Hashable | None, tuple[int, Hashable | None]] = field(default_factory=dict)
    """Endpoint that served each agent last, and the longest prefix of that prompt."""
    assigned: set[Hashable] = field(default_factory=set)
    """Agents that stay at their endpoint whatever its load, because room in its KV cache is reserved for them."""
    holders: dict[Hashable, set[int]] = field(default_factory=dict)
    """Endpoints that served each prefix, least recently used prefix first."""

    def assign(self, origin: Hashable, endpoint: int) -> None:
        self.homes[origin] = endpoint, None
        self.assigned.add(origin)

    def candidates(
        self, prefixes: Sequence[Hashable], waits: Mapping[int, float], endpoints: int
    ) -> Mapping[int, float]:
        """The endpoints that served the longest prefix and are below the load cap; if there are none, those of the next
        shorter one, and so on; then all endpoints. For a prefix that most of the `endpoints` have served, the load
        alone decides: with the cap, four of five would share all of its work, and the fifth would idle."""
        if not waits:
            return waits
        cap = (1.0 + MAX_OVERLOAD) * sum(waits.values()) / len(waits)
        for prefix in prefixes:
            holders = self.holders.get(prefix)
            if holders:
                if 2 * len(holders) > endpoints:
                    break
                if found := {at: wait for at, wait in waits.items() if wait <= cap and at in holders}:
                    return found
        return waits

    def has_preference(self, prefixes: Sequence[Hashable], endpoints: int) -> bool:
        """Whether some of the `endpoints`, but not most of them, have served the longest prefix that any has."""
        for prefix in prefixes:
            if holders := self.holders.get(prefix):
                return 2 * len(holders) <= endpoints
        return False

    def record(self, endpoint: int, origin: Hashable | None, prefixes: Sequence[Hashable]) -> None:
        """Records that the work went to this endpoint."""
        if origin is not None:
            self.homes[origin] = endpoint, prefixes[0] if prefixes else None
        for prefix in prefixes:
            holders = self.holders.pop(prefix, None)
            if holders is None:
                holders = set()
                if len(self.holders) >= _MAX_PREFIXES:
                    del self.holders[next(iter(self.holders))]
            holders.add(endpoint)
            self.holders[prefix] = holders

    def forget_endpoint(self, endpoint: int) -> None:
        """Its KV cache is gone."""
        self.homes = {origin: home for origin, home in self.homes.items() if home[0] != endpoint}
        self.assigned &= self.homes.keys()
        for holders in self.holders.values():
            holders.discard(endpoint)
        self.holders = {prefix: holders for prefix, holders in self.holders.items() if holders}
