"""Whether agents find their contexts in the server's cache again."""

from dataclasses import dataclass
from typing import Literal

_LOST = 0.5
"""A turn that finds less than this share of what it had beside the shared part has lost its place in the cache."""
_ROUNDING = 256
"""Tokens that a turn may find less for other reasons: caches keep whole blocks, templates spell answers anew."""
_MANY = 0.15
_FEW = 0.02
_REMEMBERED = 32
_SHORTEST_EPISODE = 8


@dataclass(slots=True)
class CacheMissTracker:
    """Judged in episodes: what was under way when the last one ended still belongs to it."""

    total: int = 0
    _reports_cache: bool = False
    _share: float = 0.0
    _turns: int = 0

    def saw(self, cached: int) -> None:
        """A server that never reports any tokens from its cache says nothing about losses."""
        self._reports_cache = self._reports_cache or cached > 0

    def is_lost(self, cached: int, before: int, shared: float) -> bool:
        """A turn found so many tokens, where the prompt before it had so many."""
        shared = min(shared, cached)
        lost = self._reports_cache and cached - shared < _LOST * (before - shared) - _ROUNDING
        self.total += lost
        return lost

    def judge(self, is_lost: bool, residents: int) -> Literal["many", "few"] | None:
        """What the episode shows, once it is long enough."""
        self._share += (is_lost - self._share) / _REMEMBERED
        self._turns += 1
        if not self._reports_cache or self._turns < max(_SHORTEST_EPISODE, residents):
            return None
        if self._share > _MANY:
            return "many"
        return "few" if self._share < _FEW else None

    def begin_anew(self) -> None:
        self._share, self._turns = 0.0, 0
