"""Cache-miss tracking: whether agents find their contexts in the server's KV cache again."""

from dataclasses import dataclass
from typing import Literal

_MISS_SHARE = 0.5
"""A turn whose cached share of its own context, without the shared prefix, is below this is a cache miss."""
_TOLERANCE_TOKENS = 256
"""Tokens that may be missing for other reasons: caches keep whole blocks, and templates may re-render answers."""
_MANY_MISSES = 0.15
_FEW_MISSES = 0.02
_AVERAGED_TURNS = 32
_MIN_EPISODE_TURNS = 8


@dataclass(slots=True)
class CacheMissTracker:
    """Judges the miss rate in episodes. Turns that were in flight when an episode ended belong to that episode."""

    total: int = 0
    _reports_cache: bool = False
    _miss_rate: float = 0.0
    _turns: int = 0

    def observe(self, cached: int) -> None:
        """Notes whether the server reports cached tokens at all; without them, misses cannot be detected."""
        self._reports_cache = self._reports_cache or cached > 0

    def check_turn(self, cached: int, before: int, shared: float) -> bool:
        """Whether a turn was a cache miss: `cached` tokens were found, and the previous prompt had `before`."""
        shared = min(shared, cached)
        is_miss = self._reports_cache and cached - shared < _MISS_SHARE * (before - shared) - _TOLERANCE_TOKENS
        self.total += is_miss
        return is_miss

    def verdict(self, is_miss: bool, residents: int) -> Literal["many", "few"] | None:
        """Adds a turn to the episode. Its verdict once it is long enough, or None."""
        self._miss_rate += (is_miss - self._miss_rate) / _AVERAGED_TURNS
        self._turns += 1
        if not self._reports_cache or self._turns < max(_MIN_EPISODE_TURNS, residents):
            return None
        if self._miss_rate > _MANY_MISSES:
            return "many"
        return "few" if self._miss_rate < _FEW_MISSES else None

    @property
    def episode(self) -> tuple[bool, float, int]:
        """Whether the server reports cached tokens, the miss rate, and the turns of the episode."""
        return self._reports_cache, self._miss_rate, self._turns

    def set_episode(self, reports_cache: bool, miss_rate: float, turns: int) -> None:
        """Continues an episode in which other workers took turns too."""
        self._reports_cache = self._reports_cache or reports_cache
        self._miss_rate, self._turns = miss_rate, turns

    def reset(self) -> None:
        self._miss_rate, self._turns = 0.0, 0
