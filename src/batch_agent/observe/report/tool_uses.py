"""Usage of the tools of a run: calls, executions and savings."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any, Self

from ...core.fast_dataclass import dataclass
from ...core.results import CallRecord, ToolUse
from ..tool_counts import ToolCount
from .distribution import Distribution

_SUMMED = ("requested", "executed", "shared", "cached", "failed", "seconds")


@dataclass(frozen=True, slots=True)
class ToolUsage:
    """Usage of one tool. `seconds_saved`: None if unknown."""

    name: str
    requested: int = 0
    executed: int = 0
    shared: int = 0
    cached: int = 0
    failed: int = 0
    seconds: float = 0.0
    seconds_saved: float | None = 0.0
    p50: float | None = None
    p99: float | None = None

    @classmethod
    def of(cls, tool: ToolUse) -> Self:
        """Takes the tool's own statistics. Leaves out executions that answered no call: those started in advance, and
        those whose agent had ended."""
        executed = min(tool.executed, tool.requested - tool.shared - tool.cached)
        return cls(
            tool.name, tool.requested, executed, tool.shared, tool.cached, tool.failed, tool.seconds,
            tool.seconds_saved, tool.p50, tool.p99,
        )  # fmt: skip

    def plus(self, later: "ToolUsage") -> "ToolUsage":
        sums: dict[str, Any] = {name: getattr(self, name) + getattr(later, name) for name in _SUMMED}
        is_known = self.seconds_saved is not None and later.seconds_saved is not None
        saved = (self.seconds_saved or 0.0) + (later.seconds_saved or 0.0) if is_known else None
        p50 = self.p50 if later.p50 is None else later.p50
        return replace(
            self, **sums, seconds_saved=saved, p50=p50, p99=self.p99 if later.p99 is None else later.p99
        )  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        return {name: round(each, 4) if isinstance(each, float) else each for name, each in asdict(self).items()}


class ToolUsages:
    """Usage of all tools. During a process it is counted from the agents' calls; at its end, the tools' own statistics,
    which also contain the savings, replace the counts, except for tools that do not exist. Each worker has its own
    tools."""

    def __init__(self) -> None:
        self.durations = Distribution()
        """Durations of all executions."""
        self._past: tuple[ToolUsage, ...] = ()
        self._counted: dict[tuple[str, str], _Calls] = {}
        """Counts by worker and tool."""
        self._restored: dict[tuple[str, str], _Calls] = {}
        self._reported: list[tuple[str, ToolUsage]] = []

    def add_calls(self, calls: Iterable[CallRecord], worker: str = "") -> None:
        self._count(calls, worker, self._counted)

    def add_restored(self, calls: Iterable[CallRecord]) -> None:
        """Adds the calls of an agent that finished before the log started."""
        self._count(calls, "", self._restored)

    def add_reports(self, tools: Sequence[ToolUse], worker: str = "") -> None:
        """Adds the statistics at the end of a process; in a flow, called once per set of tools."""
        self._reported += ((worker, ToolUsage.of(tool)) for tool in tools)

    def start_process(self) -> None:
        self._past, self._counted, self._restored, self._reported = self.all(), {}, {}, []

    def all(self) -> tuple[ToolUsage, ...]:
        reported = {(worker, use.name) for worker, use in self._reported}
        counted = [each.use() for key, each in self._counted.items() if key not in reported]
        reports = [use for _, use in self._reported]
        found: dict[str, ToolUsage] = {}
        for use in (*self._past, *(each.use() for each in self._restored.values()), *reports, *counted):
            found[use.name] = found[use.name].plus(use) if use.name in found else use
        return tuple(found.values())

    def _count(self, calls: Iterable[CallRecord], worker: str, into: "dict[tuple[str, str], _Calls]") -> None:
        for call in calls:
            if call.source == "restored":
                continue  # executed by an earlier process, and counted there
            counted = into.get((worker, call.name))
            if counted is None:
                counted = into[worker, call.name] = _Calls(call.name)
            counted.add(call)
            if call.source == "executed":
                self.durations.add(call.seconds)


class _Calls:
    """Calls of one tool as counted from agents: `seconds` is their waiting time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._count = ToolCount()
        self._durations = Distribution()

    def add(self, call: CallRecord) -> None:
        self._count.add(call)
        if call.source == "executed":
            self._durations.add(call.seconds)

    def use(self) -> ToolUsage:
        count = self._count
        executed, shared, cached = (count.sources[source] for source in ("executed", "shared", "cached"))
        return ToolUsage(
            self.name, count.calls, executed, shared, cached, count.failed, count.seconds,
            None if shared + cached else 0.0, self._durations.quantile(0.5), self._durations.quantile(0.99),
        )  # fmt: skip
