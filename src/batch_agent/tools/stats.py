"""Statistics per tool: calls, executions, and the time that sharing and caching saved."""

from collections import deque
from dataclasses import dataclass, field

from ..core.messages import ToolSource
from ..core.results import ToolUse

_MAX_DURATIONS = 512


@dataclass(slots=True)
class ToolStats:
    """Counters of one tool in one run."""

    name: str
    requested: int = 0
    executed: int = 0
    shared: int = 0
    cached: int = 0
    failed: int = 0
    prewarmed: int = 0
    seconds: float = 0.0
    seconds_saved: float = 0.0
    _durations: "deque[float]" = field(default_factory=lambda: deque(maxlen=_MAX_DURATIONS))

    def record_call(self, source: ToolSource, seconds: float, *, is_error: bool) -> None:
        """Counts a call that was answered. `seconds`: the duration of its execution, shared or not."""
        self.requested += 1
        self.failed += is_error
        if source == "shared":
            self.shared += 1
            self.seconds_saved += seconds
        elif source == "cached":
            self.cached += 1
            self.seconds_saved += seconds

    def record_execution(self, seconds: float) -> None:
        """Counts an execution that ended. A batch of many keys is one execution."""
        self.executed += 1
        self.seconds += seconds
        self._durations.append(seconds)

    def quantile(self, share: float) -> float | None:
        """Duration quantile over the latest executions; None before the first."""
        if not self._durations:
            return None
        ordered = sorted(self._durations)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def summary(self) -> ToolUse:
        return ToolUse(
            self.name,
            self.requested,
            self.executed,
            self.shared,
            self.cached,
            self.failed,
            self.prewarmed,
            self.seconds,
            self.seconds_saved,
            p50=self.quantile(0.5),
            p75=self.quantile(0.75),
            p99=self.quantile(0.99),
        )
