"""The numbers of a run, folded from its events."""

from collections import Counter
from dataclasses import dataclass, field

from ..core.events import (
    AgentFinished,
    Event,
    RequestRetried,
    RunStarted,
    Scheduled,
    Shared,
    Spent,
    ToolsUsed,
)
from ..core.requests import NO_USAGE, Usage
from ..core.results import AgentError, AgentResult
from ..core.scheduling import Scheduling
from ..core.sharing import PrefixReport


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
class Tally:
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
            case Scheduled():
                self.scheduling = event.scheduling
            case Shared():
                self.prefix = event.prefix
            case Spent():
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
