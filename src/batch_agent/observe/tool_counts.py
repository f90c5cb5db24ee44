"""Counts of the tool calls of a run, by the source of their results."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

from ..core.messages import ToolSource
from ..core.requests import NO_USAGE, Usage
from ..core.results import CallRecord, ToolUse


@dataclass(slots=True)
class ToolCount:
    """Counts of one tool. `seconds` is the duration of its executions."""

    sources: dict[ToolSource, int] = field(default_factory=lambda: dict.fromkeys(get_args(ToolSource), 0))
    failed: int = 0
    seconds: float = 0.0

    def add(self, call: CallRecord) -> None:
        self.sources[call.source] += 1
        self.failed += not call.ok
        if call.source == "executed":
            self.seconds += call.seconds

    @property
    def calls(self) -> int:
        return sum(self.sources.values())

    @property
    def mean_seconds(self) -> float:
        return self.seconds / self.sources["executed"] if self.sources["executed"] else 0.0


class ToolCounts:
    """Counts of all tools, collected as agents get their results, and completed at the end by the tools' own
    statistics."""

    def __init__(self) -> None:
        self.by_tool: dict[str, ToolCount] = {}
        self.reports: tuple[ToolUse, ...] = ()
        self.summaries: Usage = NO_USAGE
        """Tokens used for summaries of long results."""

    def add_calls(self, calls: Sequence[CallRecord]) -> None:
        for call in calls:
            count = self.by_tool.get(call.name)
            if count is None:
                count = self.by_tool[call.name] = ToolCount()
            count.add(call)

    def add_reports(self, reports: tuple[ToolUse, ...], summaries: Usage) -> None:
        self.reports += reports
        self.summaries += summaries

    @property
    def total(self) -> ToolCount:
        total = ToolCount()
        for count in self.by_tool.values():
            for source, calls in count.sources.items():
                total.sources[source] += calls
            total.failed += count.failed
            total.seconds += count.seconds
        return total
