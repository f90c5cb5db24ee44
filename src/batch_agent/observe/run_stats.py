"""The numbers of a run, folded from its events.

How full backends are, of all workers together.

How fast a count grows.
"""

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
    ToolsUsed,
)
from ..core.requests import NO_USAGE, Usage
from ..core.results import AgentError, AgentResult
from ..core.run_reports import PrefixReport, Scheduling


class Failures:
    """Errors that ended agents, grouped by their kind."""

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
        """Kind, how many, and the first message; the most frequent kind first."""
        return [(kind, count, self._examples[kind]) for kind, count in self._counts.most_common()]


@dataclass(slots=True)
class Tokens:
    """Usage that grows in place: a sum of frozen ones, made anew for each turn, costs more than all else that is
    counted."""

    input: int = 0
    cached: int = 0
    output: int = 0

    def add(self, usage: Usage) -> None:
        self.input += usage.input
        self.cached += usage.cached
        self.output += usage.output

    @property
    def usage(self) -> Usage:
        return Usage(self.input, self.cached, self.output)


@dataclass(slots=True)
class RunStats:
    """Of one run, or of one stage of a flow. Mutable on purpose: it is where these numbers are kept while it runs."""

    run: RunStarted | None = None
    done: int = 0
    resumed: int = 0
    turns: int = 0
    tool_calls: int = 0
    tool_sources: Counter[str] = field(default_factory=Counter)
    """The same calls by where their results came from."""
    changers: int = 0
    """Agents that changed files in their copies of the working folder."""
    usage: Usage = NO_USAGE
    """Of the agents that are done."""
    retries: Counter[str] = field(default_factory=Counter)
    """Requests that were sent again, by what had gone wrong."""
    failures: Failures = field(default_factory=Failures)
    spent: float = 0.0
    """US dollars, where the run has a budget and a price."""
    scheduling: Scheduling | None = None
    """How it went; known at the end."""
    prefix: PrefixReport | None = None
    """What the prompts share, as expected; at the end also as seen."""

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
                self.spent = event.usd
            case _:
                pass  # of interest only to who looks on

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
        self.tool_sources.update(call.source for call in result.tool_calls)
        self.changers += result.changes is not None and bool(result.changes.files)
        self.usage += result.usage
        if result.error is not None:
            self.failures.add(result.error)


class CapacityTotals:
    """What each worker may use of a backend adds up; what the server says of itself is the same for all of them."""

    def __init__(self) -> None:
        self._last: dict[str, dict[str, LoadSampled]] = {}
        """By backend and worker."""

    def together(self, worker: str, sampled: LoadSampled) -> LoadSampled:
        """With what the others said last. One that goes says 0 of 0."""
        workers = self._last.setdefault(sampled.backend, {})
        workers[worker] = sampled
        if len(workers) == 1:
            return sampled
        all_of_them = [sampled, *(each for name, each in workers.items() if name != worker)]
        return LoadSampled(
            sampled.backend,
            sum(each.inflight for each in all_of_them),
            sum(each.limit for each in all_of_them),
            sum(each.waiting for each in all_of_them),
            _sum(each.residents for each in all_of_them),
            _sum(each.kv_held for each in all_of_them),
            _sum(each.kv_limit for each in all_of_them),
            next((each.kv_usage for each in all_of_them if each.kv_usage is not None), None),
            next((each.server_running for each in all_of_them if each.server_running is not None), None),
            next((each.server_waiting for each in all_of_them if each.server_waiting is not None), None),
        )


def _sum(parts: Iterable[int | None]) -> int | None:
    """Of those that are known."""
    known = [each for each in parts if each is not None]
    return sum(known) if known else None


_BETWEEN = 0.5
"""Seconds between two marks, at least."""
_WINDOW = 60.0
_ENOUGH = 5


class RateEstimator:
    """Over the last minute; over all of it where too little has happened in the last minute to tell."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, float]] = deque()
        self._first: tuple[float, float] | None = None
        self._last = (0.0, 0.0)

    def mark(self, seconds: float, count: float) -> None:
        """So many there are by now. Times must not go back."""
        self._last = (seconds, count)
        if self._first is None:
            self._first = self._last
        if not self._marks or seconds - self._marks[-1][0] >= _BETWEEN:
            self._marks.append(self._last)
            while seconds - self._marks[0][0] > _WINDOW:
                self._marks.popleft()

    @property
    def rate(self) -> float:
        """For a second."""
        if self._first is None:
            return 0.0
        now, count = self._last
        then, before = self._marks[0]
        if count - before < _ENOUGH:
            then, before = self._first
        return (count - before) / (now - then) if now > then else 0.0
