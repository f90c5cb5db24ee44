"""What the tools of a run were asked, what they did, and what sharing saved."""

from collections import deque
from dataclasses import dataclass, field

from ..core.messages import ToolSource
from ..core.results import ToolUse

_REMEMBERED = 512


@dataclass(slots=True)
class ToolStats:
    """The account of one tool."""

    name: str
    requested: int = 0
    executed: int = 0
    shared: int = 0
    cached: int = 0
    failed: int = 0
    prewarmed: int = 0
    seconds: float = 0.0
    seconds_saved: float = 0.0
    _durations: "deque[float]" = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def called(self, source: ToolSource, seconds: float, *, is_error: bool) -> None:
        """A call was answered; `seconds` is what its execution took, whoever waited for it."""
        self.requested += 1
        self.failed += is_error
        if source == "shared":
            self.shared += 1
            self.seconds_saved += seconds
        elif source == "cached":
            self.cached += 1
            self.seconds_saved += seconds

    def ran(self, seconds: float) -> None:
        """An execution came to its end; one for many keys is one."""
        self.executed += 1
        self.seconds += seconds
        self._durations.append(seconds)

    def quantile(self, share: float) -> float | None:
        """Of the last executions; None before the first."""
        if not self._durations:
            return None
        ordered = sorted(self._durations)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def use(self) -> ToolUse:
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
