"""What the tools of a run were asked, did and saved."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any, Self

from ...core.fast_dataclass import dataclass
from ...core.results import CallRecord, ToolUse
from ..tool_counts import ToolCount
from .distribution import Distribution

_ADD_UP = ("requested", "executed", "shared", "cached", "failed", "seconds")


@dataclass(frozen=True, slots=True)
class ToolUsage:
    """Of one tool. `seconds_saved`: None where nobody knows."""

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
        """As the tools themselves account for it."""
        return cls(
            tool.name, tool.requested, tool.executed, tool.shared, tool.cached, tool.failed, tool.seconds,
            tool.seconds_saved, tool.p50, tool.p99,
        )  # fmt: skip

    def plus(self, later: "ToolUsage") -> "ToolUsage":
        sums: dict[str, Any] = {name: getattr(self, name) + getattr(later, name) for name in _ADD_UP}
        is_known = self.seconds_saved is not None and later.seconds_saved is not None
        saved = (self.seconds_saved or 0.0) + (later.seconds_saved or 0.0) if is_known else None
        p50 = self.p50 if later.p50 is None else later.p50
        return replace(
            self, **sums, seconds_saved=saved, p50=p50, p99=self.p99 if later.p99 is None else later.p99
        )  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        return {name: round(each, 4) if isinstance(each, float) else each for name, each in asdict(self).items()}


class ToolUsages:
    """Counted from the agents' calls while a process goes on; at its end the tools' own account takes their place,
    but for names that a model made up. What sharing saved is known from that alone. Each worker has its own tools."""

    def __init__(self) -> None:
        self.durations = Distribution()
        """Of all executions."""
        self._past: tuple[ToolUsage, ...] = ()
        self._counted: dict[tuple[str, str], _Calls] = {}
        """By worker and tool."""
        self._recalled: dict[tuple[str, str], _Calls] = {}
        self._told: list[tuple[str, ToolUsage]] = []

    def called(self, calls: Iterable[CallRecord], worker: str = "") -> None:
        self._count(calls, worker, self._counted)

    def recalled(self, calls: Iterable[CallRecord]) -> None:
        """Of an agent that was done before the log began."""
        self._count(calls, "", self._recalled)

    def told(self, tools: Sequence[ToolUse], worker: str = "") -> None:
        """At the end of a process; of a flow, once for each set of tools."""
        self._told += ((worker, ToolUsage.of(tool)) for tool in tools)

    def begins_process(self) -> None:
        self._past, self._counted, self._recalled, self._told = self.all(), {}, {}, []

    def all(self) -> tuple[ToolUsage, ...]:
        told = {(worker, use.name) for worker, use in self._told}
        counted = [each.use() for key, each in self._counted.items() if key not in told]
        accounts = [use for _, use in self._told]
        found: dict[str, ToolUsage] = {}
        for use in (*self._past, *(each.use() for each in self._recalled.values()), *accounts, *counted):
            found[use.name] = found[use.name].plus(use) if use.name in found else use
        return tuple(found.values())

    def _count(self, calls: Iterable[CallRecord], worker: str, into: "dict[tuple[str, str], _Calls]") -> None:
        for call in calls:
            if call.source == "recalled":
                continue  # made by an earlier process, and counted there
            counted = into.get((worker, call.name))
            if counted is None:
                counted = into[worker, call.name] = _Calls(call.name)
            counted.add(call)
            if call.source == "executed":
                self.durations.add(call.seconds)


class _Calls:
    """Of one tool, as its agents saw them: seconds are what they waited."""

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
