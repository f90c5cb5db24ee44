"""Which endpoint has what in its KV cache: whose agents, and which beginnings of prompts."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

LOYALTY = 4.0
"""An agent stays where its context is until it would wait this many times as long there as elsewhere. To move is to
compute a context of several turns again, at the cost of others who wait there, and to leave the old one behind in the
way of others still: that is a few turns' work, and a queue that is a few times longer is over sooner."""

OVERLOAD = 0.25
"""A prompt goes where its prefix is while that endpoint has no more than this beyond the mean load. Consistent hashing
with bounded loads is usually run with a quarter: less scatters prefixes at every ripple, more lets one popular prefix
make a queue beside idle endpoints; to compute a prefix once more is cheap beside that."""

_PREFIXES = 4096
"""Prefixes remembered, the last used. Engines hold fewer of any length, so older ones are not in a cache any more; and
it is less than a megabyte."""


@dataclass(slots=True)
class Affinity:
    """Remembers who served what, and says where work should go while the load allows it. `waits` are the expected
    seconds, by endpoint, of those that may be given the work."""

    _homes: dict[Hashable, int] = field(default_factory=dict)
    _holders: dict[Hashable, set[int]] = field(default_factory=dict)
    """For each prefix the endpoints that served it; the prefix that was used last is last."""

    def home(self, origin: Hashable | None) -> int | None:
        return None if origin is None else self._homes.get(origin)

    def stays(self, home: int, waits: Mapping[int, float]) -> bool:
        return waits[home] <= LOYALTY * min(waits.values())

    def among(self, prefix: Hashable | None, waits: Mapping[int, float]) -> Mapping[int, float]:
        """Those that served the prefix and are not beyond their cap; all, where there are none. A prefix that everyone
        has served says nothing about where to go: then the load alone does."""
        holders = self._holders.get(prefix, ())
        cap = (1.0 + OVERLOAD) * sum(waits.values()) / max(1, len(waits))
        return {place: wait for place, wait in waits.items() if place in holders and wait <= cap} or waits

    def settle(self, endpoint: int, origin: Hashable | None, prefix: Hashable | None) -> None:
        """The work went there."""
        if origin is not None:
            self._homes[origin] = endpoint
        if prefix is not None:
            self._holders[prefix] = self._holders.pop(prefix, set()) | {endpoint}
            if len(self._holders) > _PREFIXES:
                del self._holders[next(iter(self._holders))]

    def forget(self, origin: Hashable) -> None:
        self._homes.pop(origin, None)
