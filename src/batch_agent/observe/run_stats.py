"""Statistics of a run, computed from its events: counts, token usage, capacity of backends, and rates."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..core.events import (
    AgentFinished,
    BudgetReported,
    Event,
    LoadSampled,
    PrefixReported,
    RequestRetried,
    RunStarted,
    SchedulingReported,
    Steered,
    ToolsUsed,
)
from ..core.requests import NO_USAGE, Usage
from ..core.results import AgentError, AgentResult
from ..core.run_reports import PrefixReport, Scheduling


class Failures:
    """Errors of failed agents, grouped by kind."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, str] = {}

    def add(self, error: AgentError) -> None:
        self._counts[error.kind] += 1
        self._examples.setdefault(error.kind, error.message)

    @property
    def total(self) -> int:
        return self._counts.total()

    @property
    def groups(self) -> list[tuple[str, int, str]]:
        """Kind, count and first message; the most frequent kind first."""
        return [(kind, count, self._examples[kind]) for kind, count in self._counts.most_common()]


@dataclass(slots=True)
class Tokens:
    """Mutable token usage. Adding frozen `Usage` objects for each turn would cost more than all other counting."""

    input: int = 0
    cached: int = 0
    output: int = 0
    billed: Usage = NO_USAGE
    """Rare parts of the usage: cache writes, long prompts, other lanes."""

    def add(self, usage: Usage) -> None:
        self.input += usage.input
        self.cached += usage.cached
        self.output += usage.output
        if usage.written or usage.written_hour or usage.parts:
            self.billed += usage

    @property
    def usage(self) -> Usage:
        billed = self.billed
        return Usage(self.input, self.cached, self.output, billed.written, billed.written_hour, billed.parts)


@dataclass(slots=True)
class RunStats:
    """Statistics of one run, or of one stage of a flow. Mutable: every event updates it."""

    run: RunStarted | None = None
    done: int = 0
    resumed: int = 0
    turns: int = 0
    tool_calls: int = 0
    """Tool calls of the finished agents."""
    tool_sources: Counter[str] = field(default_factory=Counter)
    """The same calls by the source of their results."""
    calls_by_tool: Counter[str] = field(default_factory=Counter)
    failed_by_tool: Counter[str] = field(default_factory=Counter)
    agents_with_changes: int = 0
    """Agents that changed files in their workspaces."""
    usage: Usage = NO_USAGE
    """Usage of the finished agents."""
    retries: Counter[str] = field(default_factory=Counter)
    """Retried requests by kind of error."""
    failures: Failures = field(default_factory=Failures)
    truncated: int = 0
    """Answers that were cut at max_tokens."""
    spent: float = 0.0
    """Spending in US dollars, if the run has a budget and a price."""
    scheduling: Scheduling | None = None
    """Known at the end of the run."""
    prefix: PrefixReport | None = None
    """Prefix sharing as predicted; at the end also as measured."""
    added: int = 0
    """Agents of inputs that were added during the run."""

    def emit(self, event: Event) -> None:
        match event:
            case AgentFinished():
                self._finished(event.result, event.resumed)
            case RequestRetried():
                self.retries[event.kind] += 1
            case RunStarted():
                self.run = event
            case ToolsUsed():
                self.usage += event.summaries
            case SchedulingReported():
                self.scheduling = event.scheduling
            case PrefixReported():
                self.prefix = event.prefix
            case BudgetReported():
                self.spent = event.cost
            case Steered():
                self.added += event.agents
            case _:
                pass  # only relevant for live views

    @property
    def total(self) -> int | None:
        """Number of agents, if known."""
        return None if self.run is None or self.run.total is None else self.run.total + self.added

    @property
    def model(self) -> str:
        return self.run.model if self.run else ""

    @property
    def backend(self) -> str:
        return self.run.backend if self.run else ""

    @property
    def failed(self) -> int:
        return self.failures.total

    @property
    def ok(self) -> int:
        return self.done - self.failed

    def _finished(self, result: AgentResult, resumed: bool) -> None:
        self.done += 1
        self.resumed += resumed
        self.turns += result.turns
        self.tool_calls += len(result.tool_calls)
        for call in result.tool_calls:
            self.tool_sources[call.source] += 1
            self.calls_by_tool[call.name] += 1
            if not call.ok:
                self.failed_by_tool[call.name] += 1
        self.agents_with_changes += result.changes is not None and bool(result.changes.files)
        self.usage += result.usage
        self.truncated += result.is_truncated
        if result.error is not None:
            self.failures.add(result.error)


class CapacityTotals:
    """Load of backends over all workers. The workers' own use is added up; what the server reports is the same for
    all."""

    def __init__(self) -> None:
        self._last: dict[str, dict[str, LoadSampled]] = {}
        """Last sample by backend and worker."""

    def add(self, worker: str, sampled: LoadSampled) -> LoadSampled:
        """The sample combined with the last ones of the other workers. A worker that leaves reports 0 of 0."""
        workers = self._last.setdefault(sampled.backend, {})
        workers[worker] = sampled
        if len(workers) == 1:
            return sampled
        samples = [sampled, *(each for name, each in workers.items() if name != worker)]
        return LoadSampled(
            sampled.backend,
            sum(each.inflight for each in samples),
            sum(each.limit for each in samples),
            sum(each.waiting for each in samples),
            _sum(each.residents for each in samples),
            _sum(each.kv_held for each in samples),
            _sum(each.kv_limit for each in samples),
            next((each.kv_usage for each in samples if each.kv_usage is not None), None),
            next((each.server_running for each in samples if each.server_running is not None), None),
            next((each.server_waiting for each in samples if each.server_waiting is not None), None),
        )


def _sum(parts: Iterable[int | None]) -> int | None:
    """Sum of the known values; None if there are none."""
    known = [each for each in parts if each is not None]
    return sum(known) if known else None


_MIN_INTERVAL = 0.5
"""Minimum seconds between two points."""
_WINDOW = 60.0
_MIN_COUNT = 5


class RateEstimator:
    """Rate of a growing count over the last minute, or over the whole time if too little happened in the last
    minute."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque()
        self._first: tuple[float, float] | None = None
        self._last = (0.0, 0.0)

    def update(self, seconds: float, count: float) -> None:
        """Adds the count at this time. Times must not decrease."""
        self._last = (seconds, count)
        if self._first is None:
            self._first = self._last
        if not self._points or seconds - self._points[-1][0] >= _MIN_INTERVAL:
            self._points.append(self._last)
            while seconds - self._points[0][0] > _WINDOW:
                self._points.popleft()

    @property
    def rate(self) -> float:
        """Per second."""
        if self._first is None:
            return 0.0
        now, count = self._last
        then, before = self._points[0]
        if count - before < _MIN_COUNT:
            then, before = self._first
        return (count - before) / (now - then) if now > then else 0.0
