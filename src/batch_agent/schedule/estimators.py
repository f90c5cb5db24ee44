"""Estimators: prefill speed of the server, latency of tools, growth of contexts, and whether agents find their contexts
in the server's KV cache again."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import field
from typing import Literal

from ..core.fast_dataclass import dataclass
from ..core.requests import Usage

_INFINITY = float("inf")
_MAX_WINDOW_SECONDS = 1.0
_WINDOW_LATENCIES = 4
_DECAY = 0.999
_SMALL_SHARE = 0.1
_MIN_TOKENS = 256
_REMEMBERED_WAITS = 64
_MIN_WAITS = 4
_MISS_SHARE = 0.5
"""A turn whose cached share of its own context, without the shared prefix, is below this is a cache miss."""
_TOLERANCE_TOKENS = 256
"""Tokens that may be missing for other reasons: caches keep whole blocks, and templates may re-render answers."""
_MANY_MISSES = 0.15
_FEW_MISSES = 0.02
_AVERAGED_TURNS = 32
_MIN_EPISODE_TURNS = 8
_EXPECTED_GROWTH = 0.25
"""Assumed growth of a context, as a share of its first prompt, until it has been measured."""
_AVERAGED_AGENTS = 32


@dataclass(slots=True)
class PrefillSpeed:
    """Prompt tokens per second that a busy server computes: the best measurement, slowly decaying. Tokens of
    overlapping requests are counted together, from the first start to the last first token, so this rarely exceeds what
    the server can do, and decisions based on it err towards keeping contexts."""

    tokens_per_second: float | None = None
    _per_output: float = _INFINITY
    """Seconds per generated token, at the server's best."""
    _began: float | None = None
    _computed_by: float = 0.0
    _last: float = 0.0
    _tokens: int = 0

    def observe(self, usage: Usage, seconds: float, ttft: float | None, now: float) -> None:
        """A request was answered after `seconds`. Without a time to first token, it is estimated from the least time
        that the generated tokens take."""
        started, computed = now - seconds, usage.input - usage.cached
        if computed < 0:
            computed = 0
        if usage.output and computed <= _SMALL_SHARE * usage.input:
            per_output, usual = seconds / usage.output, self._per_output / _DECAY
            self._per_output = per_output if per_output < usual else usual
        if ttft is None:
            ttft = seconds - usage.output * self._per_output if self._per_output < _INFINITY else seconds
        first = started + max(ttft, _SMALL_SHARE * seconds)
        was_idle = started > self._last
        if self._began is None or was_idle or now - self._began > max(_MAX_WINDOW_SECONDS, _WINDOW_LATENCIES * seconds):
            self._began, self._computed_by, self._tokens = started, first, 0
        if started < self._began:
            self._began = started
        if first > self._computed_by:
            self._computed_by = first
        self._last = now
        self._tokens += computed
        if self._tokens >= _MIN_TOKENS and self._computed_by > self._began:
            speed = self._tokens / (self._computed_by - self._began)
            self.tokens_per_second = max(speed, (self.tokens_per_second or 0.0) * _DECAY)


@dataclass(slots=True)
class ToolWaits:
    """Latency of each tool, as agents wait for it."""

    _waits: "dict[str, _RecentWaits]" = field(default_factory=dict)
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED_WAITS))
    """Waits for any tool."""

    def observe_wait(self, tools: Sequence[str], seconds: float) -> None:
        """An agent has waited for all of these tools."""
        for tool in tools:
            self.observe(tool, seconds)
        self._recent.append(seconds)

    def observe(self, tool: str, seconds: float) -> None:
        waits = self._waits.get(tool)
        if waits is None:
            waits = self._waits[tool] = _RecentWaits()
        waits.add(seconds)

    @property
    def typical(self) -> float | None:
        """Seconds within which three of four waits end, whatever the tools are; None while too little is known."""
        return sorted(self._recent)[3 * len(self._recent) // 4] if len(self._recent) >= _MIN_WAITS else None

    def estimate(self, tools: list[str]) -> float | None:
        """Seconds within which three of four waits for all of these tools end; None while too little is known."""
        longest = 0.0
        for tool in tools:
            waits = self._waits.get(tool)
            if waits is None or waits.third_quartile is None:
                return None
            if waits.third_quartile > longest:
                longest = waits.third_quartile
        return longest


@dataclass(slots=True)
class _RecentWaits:
    """The last waits, in the order of time and in that of their length."""

    third_quartile: float | None = None
    """None while there are too few."""
    _waits: deque[float] = field(default_factory=deque)
    _sorted: list[float] = field(default_factory=list)

    def add(self, seconds: float) -> None:
        self._waits.append(seconds)
        insort(self._sorted, seconds)
        count = len(self._sorted)
        if count > _REMEMBERED_WAITS:
            count = _REMEMBERED_WAITS
            del self._sorted[bisect_left(self._sorted, self._waits.popleft())]
        if count >= _MIN_WAITS:
            self.third_quartile = self._sorted[3 * count // 4]


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


@dataclass(slots=True)
class ContextGrowth:
    """Tokens by which the contexts of agents grow after their first prompt."""

    finished: int = 0
    """Agents that have ended."""
    mean: float = 0.0
    """Of the agents that have ended."""
    largest: float = 0.0
    """Of all agents so far."""

    def observe(self, growth: float) -> None:
        """An agent ended with this growth."""
        self.finished += 1
        self.mean += (growth - self.mean) / min(self.finished, _AVERAGED_AGENTS)

    def merge(self, finished: int, mean: float, largest: float) -> None:
        """Takes over what all workers have measured together."""
        self.finished, self.mean, self.largest = finished, mean, max(self.largest, largest)

    def expected(self, first: float, residents: int) -> float:
        """Growth of each of so many residents, whose first prompts have `first` tokens together."""
        if self.finished:
            return self.mean
        return max(_EXPECTED_GROWTH * first / residents if residents else 0.0, self.largest)
