"""Everything that a live view shows of a run or of a flow, folded from its events."""

from collections import Counter, deque
from dataclasses import dataclass, field

from ...core.events import (
    AgentFinished,
    AgentReassigned,
    AgentStarted,
    BudgetReported,
    CallbackFailed,
    CallsEnded,
    CallsStarted,
    Event,
    FlowStarted,
    ItemQueued,
    LoadSampled,
    Notice,
    Paused,
    RequestRetried,
    Resumed,
    StageEvent,
    ToolsUsed,
    TurnEnded,
    TurnStarted,
    WorkerEvent,
)
from ...core.requests import NO_USAGE, Usage
from ...core.results import AgentResult
from ..agent_states import AgentStates
from ..run_stats import CapacityTotals, RateEstimator, RunStats, Tokens
from ..text.formatting import prefix_worker
from ..tool_counts import ToolCounts

_LATEST = 8


@dataclass(slots=True)
class LiveStage:
    """One stage of a flow, or a run on its own. Mutable on purpose, as its parts are."""

    tally: RunStats = field(default_factory=RunStats)
    agents: AgentStates = field(default_factory=AgentStates)
    pace: RateEstimator = field(default_factory=RateEstimator)
    """Of agents that were done here, not in an earlier process."""
    turned: Tokens = field(default_factory=Tokens)
    """Of all turns so far, those of agents under way too."""
    came: int = 0
    """Items that it was given by the stage before."""

    @property
    def of(self) -> int | None:
        """How many agents it has, as far as anybody knows."""
        return self.came or (self.tally.run.total if self.tally.run else None)

    @property
    def to_come(self) -> int | None:
        return None if self.of is None else max(0, self.of - self.tally.done - len(self.agents))

    @property
    def seconds_left(self) -> float | None:
        """None where nobody can tell."""
        if self.of is None or self.pace.rate <= 0:
            return None
        return max(0, self.of - self.tally.done) / self.pace.rate

    @property
    def usd(self) -> float | None:
        """What its turns cost so far; None where nobody knows the price."""
        return self.tally.run.cost(self.turned.usage) if self.tally.run else None


class LiveState:
    """An event costs the same whatever the number of agents, and only those under way are held. It has no clock:
    whoever looks at it says the time with `tick`."""

    def __init__(self) -> None:
        self.stages: dict[str, LiveStage] = {"": LiveStage()}
        """In order. A run on its own is a stage without a name."""
        self.backends: dict[str, LoadSampled] = {}
        """How full each was when it was last looked at."""
        self.tools = ToolCounts()
        self.latest: deque[tuple[str, AgentResult]] = deque(maxlen=_LATEST)
        """Stage and result, the newest last."""
        self.turns: Counter[str] = Counter()
        """By worker; those that were made in this process have no name."""
        self.notice = ""
        self.spent: BudgetReported | None = None
        self.callbacks: dict[str, tuple[int, str]] = {}
        """Functions of a flow that raised: how often, and what the first said."""
        self.read = RateEstimator()
        self.written = RateEstimator()
        self._fullness = CapacityTotals()
        self._pauses: dict[str, str] = {}

    def emit(self, event: Event) -> None:
        name = worker = ""
        if isinstance(event, StageEvent):
            name, event = event.stage, event.event
        if isinstance(event, WorkerEvent):
            worker, event = event.worker, event.event
        stage = self.stages.get(name)
        if stage is None:
            self._of_all(worker, event)
            return
        match event:  # what happens often comes first
            case TurnStarted():
                stage.agents.does(event.key, "generating")
            case TurnEnded():
                stage.agents.does(event.key, "waiting")
                stage.turned.add(event.usage)
                self.turns[worker] += 1
            case CallsStarted():
                stage.agents.does(event.key, "in tools")
            case CallsEnded():
                stage.agents.does(event.key, "waiting")
                self.tools.ended(event.calls)
            case AgentStarted():
                stage.agents.starts(event.key)
            case AgentReassigned():
                stage.agents.leaves(event.key)
            case AgentFinished():
                stage.agents.leaves(event.result.key)
                stage.tally.emit(event)
                self.latest.append((name, event.result))
            case RequestRetried():
                stage.agents.does(event.key, "waiting")
                stage.tally.emit(event)
            case ItemQueued():
                stage.came += 1
            case _:
                stage.tally.emit(event)
                self._of_all(worker, event)

    def _of_all(self, worker: str, event: Event) -> None:
        """What does not belong to one stage."""
        match event:
            case LoadSampled():
                self.backends[event.backend] = self._fullness.together(worker, event)
            case ToolsUsed():
                self.tools.told(event.tools, event.summaries)
            case Notice():
                self.notice = prefix_worker(worker, event.text)
            case Paused():
                self._pauses[worker] = event.reason
            case Resumed():
                self._pauses.pop(worker, None)
            case BudgetReported():
                self.spent = event
            case CallbackFailed(where, _, message):
                count, first = self.callbacks.get(where, (0, message))
                self.callbacks[where] = count + 1, first
            case FlowStarted():
                self.stages = {name: LiveStage() for name in event.stages}
            case _:
                pass

    def tick(self, seconds: float) -> None:
        """So long it has been going on: for what is said of its speed."""
        for stage in self.stages.values():
            if stage.tally.run is not None:
                stage.pace.mark(seconds, stage.tally.done - stage.tally.resumed)
        if self.has_begun:
            usage = self.turned
            self.read.mark(seconds, usage.input)
            self.written.mark(seconds, usage.output)

    @property
    def paused(self) -> str:
        """Why nothing is sent at the moment, and by whom; empty where all is well."""
        return "; ".join(prefix_worker(worker, reason) for worker, reason in self._pauses.items())

    @property
    def is_flow(self) -> bool:
        return "" not in self.stages

    @property
    def has_begun(self) -> bool:
        return any(stage.tally.run is not None for stage in self.stages.values())

    @property
    def alone(self) -> RunStats:
        """The numbers of a run that is no flow."""
        return self.stages[""].tally

    @property
    def turned(self) -> Usage:
        return sum((stage.turned.usage for stage in self.stages.values()), NO_USAGE)

    @property
    def failed(self) -> int:
        return sum(stage.tally.failed for stage in self.stages.values())

    @property
    def resumed(self) -> int:
        return sum(stage.tally.resumed for stage in self.stages.values())

    @property
    def seconds_left(self) -> float | None:
        """Until the slowest stage is done; None where that is not known of one."""
        left = [stage.seconds_left for stage in self.stages.values() if stage.of is None or stage.tally.done < stage.of]
        return None if None in left else max((each for each in left if each is not None), default=0.0)

    @property
    def usd(self) -> float | None:
        """So far; None where the price of any stage is not known."""
        if self.spent is not None and self.spent.usd:
            return self.spent.usd
        costs = [stage.usd for stage in self.stages.values() if stage.tally.run is not None]
        return None if None in costs else sum(cost for cost in costs if cost is not None)
