"""The numbers of a run, folded from its events."""

from collections import Counter
from dataclasses import dataclass, field

from ..core.events import (
    AgentFinished,
    AgentStarted,
    Event,
    FlowStarted,
    InStage,
    LimitChanged,
    Notice,
    Paused,
    Queued,
    RequestRetried,
    Resumed,
    RunStarted,
    Scheduled,
    Shared,
    Spent,
    ToolsUsed,
)
from ..core.requests import Usage
from ..core.results import AgentResult, ToolUse
from ..core.scheduling import Scheduling
from ..core.sharing import PrefixReport


@dataclass(slots=True)
class Tally:
    """Mutable on purpose: it is the one place where a run's numbers are kept while it runs."""

    backend: str = ""
    model: str = ""
    notice: str = ""
    paused: str = ""
    """Why nothing is sent at the moment."""
    total: int | None = None
    inflight: int = 0
    started: int = 0
    done: int = 0
    resumed: int = 0
    failed: int = 0
    retries: int = 0
    turns: int = 0
    tool_calls: int = 0
    spent: float = 0.0
    """US dollars, where the run has a budget and a price."""
    tools: tuple[ToolUse, ...] = ()
    scheduling: Scheduling | None = None
    """How it went; known at the end."""
    prefix: PrefixReport | None = None
    """What the prompts share, as expected; at the end also as seen."""
    usage: Usage = field(default_factory=Usage)
    failures: Counter[str] = field(default_factory=Counter)
    """How often each kind of error ended an agent."""
    examples: dict[str, str] = field(default_factory=dict)
    """The first message of each kind."""

    def emit(self, event: Event) -> None:
        match event:
            case RunStarted():
                self.backend, self.model, self.total, self.inflight = (
                    event.backend,
                    event.model,
                    event.total,
                    event.inflight,
                )
            case Notice():
                self.notice = event.text
            case AgentStarted():
                self.started += 1
            case RequestRetried():
                self.retries += 1
            case ToolsUsed():
                self.tools = event.tools
                self.usage += event.summaries
            case Scheduled():
                self.scheduling = event.scheduling
            case Shared():
                self.prefix = event.prefix
            case Spent():
                self.spent = event.usd
            case Paused():
                self.paused = event.reason
            case Resumed():
                self.paused = ""
            case LimitChanged():
                self.inflight = event.inflight
            case AgentFinished():
                self._finished(event.result, event.resumed)
            case FlowStarted() | Queued() | InStage():
                pass  # a flow has a tally for each stage

    @property
    def ok(self) -> int:
        return self.done - self.failed

    @property
    def running(self) -> int:
        return self.started - (self.done - self.resumed)

    def _finished(self, result: AgentResult, resumed: bool) -> None:
        self.done += 1
        self.resumed += resumed
        self.turns += result.turns
        self.tool_calls += len(result.tool_calls)
        self.usage += result.usage
        if result.error is not None:
            self.failed += 1
            self.failures[result.error.kind] += 1
            self.examples.setdefault(result.error.kind, result.error.message)
