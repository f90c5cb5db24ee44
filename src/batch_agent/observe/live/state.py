"""State of a run or flow for live views, computed from its events."""

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
    EndpointChanged,
    Event,
    FlowStarted,
    ItemQueued,
    LoadSampled,
    Notice,
    Paused,
    RequestRetried,
    Resumed,
    Steered,
    ToolsUsed,
    TurnEnded,
    TurnStarted,
    unwrap,
)
from ...core.requests import NO_USAGE, Usage
from ...core.results import AgentResult
from ..agent_states import AgentStates
from ..run_stats import CapacityTotals, RateEstimator, RunStats, Tokens
from ..text.text_format import prefix_worker
from ..tool_counts import ToolCounts

_MAX_LATEST = 8


@dataclass(slots=True)
class LiveStage:
    """State of one stage of a flow, or of a run without stages. Mutable: every event updates it."""

    stats: RunStats = field(default_factory=RunStats)
    agents: AgentStates = field(default_factory=AgentStates)
    throughput: RateEstimator = field(default_factory=RateEstimator)
    """Rate at which agents finish in this process."""
    turn_tokens: Tokens = field(default_factory=Tokens)
    """Usage of all turns so far, including those of agents in progress."""
    unfinished: dict[str, Tokens] = field(default_factory=dict)
    """Usage of agents in progress, by key. Finished agents are in `stats`."""
    queued: int = 0
    """Items that the previous stage has passed on."""

    def add_turn(self, key: str, usage: Usage) -> None:
        self.turn_tokens.add(usage)
        agent = key.partition(".")[0]  # chunks of a long input belong to its agent
        if (tokens := self.unfinished.get(agent)) is not None:
            tokens.add(usage)
        elif agent in self.agents:  # otherwise its result came first, from another worker
            self.unfinished[agent] = tokens = Tokens()
            tokens.add(usage)

    @property
    def usage(self) -> Usage:
        """Usage of the finished agents, and of the turns so far of those in progress."""
        return sum((tokens.usage for tokens in self.unfinished.values()), self.stats.usage)

    @property
    def total(self) -> int | None:
        """Number of agents, if known."""
        return self.queued or self.stats.total

    @property
    def not_started(self) -> int | None:
        return None if self.total is None else max(0, self.total - self.stats.done - len(self.agents))

    @property
    def seconds_left(self) -> float | None:
        """Estimated time to the end; None if unknown."""
        if self.total is None or self.throughput.rate <= 0:
            return None
        return max(0, self.total - self.stats.done) / self.throughput.rate

    @property
    def cost(self) -> float | None:
        """Cost of the turns so far; None if the price is unknown."""
        return self.cost_of(self.turn_tokens.usage)

    def cost_of(self, usage: Usage) -> float | None:
        return self.stats.run.cost(usage) if self.stats.run else None


class LiveState:
    """State of all stages. Each event takes constant time, and only agents in progress are held. Without a clock: the
    view sets the time with `tick`."""

    def __init__(self) -> None:
        self.stages: dict[str, LiveStage] = {"": LiveStage()}
        """Stages in order. A run without stages has one, with an empty name."""
        self.backends: dict[str, LoadSampled] = {}
        """Last load sample of each backend."""
        self.tools = ToolCounts()
        self.latest: deque[tuple[str, AgentResult]] = deque(maxlen=_MAX_LATEST)
        """Stage and result of the agents that finished last, the newest at the end."""
        self.turns: Counter[str] = Counter()
        """Turns by worker. This process has an empty name."""
        self.notice = ""
        self._last_retry = ""
        self.budget: BudgetReported | None = None
        self.callback_failures: dict[str, tuple[int, str]] = {}
        """Callbacks of a flow that raised, each with the count and the first message."""
        self.input_rate = RateEstimator()
        self.output_rate = RateEstimator()
        self._capacity = CapacityTotals()
        self._pauses: dict[str, str] = {}
        self._is_held = False
        """Whether the user has paused the run."""
        self.steered: list[str] = []
        """Changes that the user made during the run."""
        self.endpoint_changes: Counter[str] = Counter()
        """Endpoints that joined, drained or left during the run."""

    def emit(self, event: Event) -> None:
        name, worker, event = unwrap(event)
        stage = self.stages.get(name)
        if stage is None:
            self._apply_global(worker, event)
            return
        match event:  # the most frequent events first
            case TurnStarted():
                stage.agents.set(event.key, "generating")
            case TurnEnded():
                stage.agents.set(event.key, "waiting")
                stage.add_turn(event.key, event.usage)
                self.turns[worker] += 1
            case CallsStarted():
                stage.agents.set(event.key, "in tools")
            case CallsEnded():
                stage.agents.set(event.key, "waiting")
                self.tools.add_calls(event.calls)
            case AgentStarted():
                stage.agents.add(event.key)
            case AgentReassigned():
                stage.agents.remove(event.key)
                stage.unfinished.pop(event.key, None)
            case AgentFinished():
                stage.agents.remove(event.result.key)
                stage.unfinished.pop(event.result.key, None)
                stage.stats.emit(event)
                self.latest.append((name, event.result))
            case RequestRetried():
                stage.agents.set(event.key, "waiting")
                stage.stats.emit(event)
                self._last_retry = event.message
            case ItemQueued():
                stage.queued += 1
            case _:
                stage.stats.emit(event)
                self._apply_global(worker, event)

    def _apply_global(self, worker: str, event: Event) -> None:
        """Applies an event that does not belong to one stage."""
        match event:
            case LoadSampled():
                self.backends[event.backend] = self._capacity.add(worker, event)
            case ToolsUsed():
                self.tools.add_reports(event.tools, event.summaries)
            case Notice():
                self.notice = prefix_worker(worker, event.text)
            case Paused():
                self._pauses[worker] = event.reason
            case Resumed():
                self._pauses.pop(worker, None)
            case Steered():
                self.notice = f"Steered: {event}"
                self.steered.append(str(event))
                if event.name == "pause":
                    self._is_held = event.after == "yes"
            case EndpointChanged():
                self.notice = prefix_worker(worker, str(event))
                self.endpoint_changes[event.state] += 1
            case BudgetReported():
                self.budget = event
            case CallbackFailed(where, _, message):
                count, first = self.callback_failures.get(where, (0, message))
                self.callback_failures[where] = count + 1, first
            case FlowStarted():
                self.stages = {name: LiveStage() for name in event.stages}
            case _:
                pass

    def tick(self, seconds: float) -> None:
        """Updates the rates. `seconds`: since the start of the run."""
        for stage in self.stages.values():
            if stage.stats.run is not None:
                stage.throughput.update(seconds, stage.stats.done - stage.stats.resumed)
        if self.has_started:
            usage = self.turn_usage
            self.input_rate.update(seconds, usage.input)
            self.output_rate.update(seconds, usage.output)

    @property
    def paused(self) -> str:
        """The reasons why no requests are sent at the moment, by worker; empty if the run is not paused."""
        held = ["by batch-agent ctl"] if self._is_held else []
        return "; ".join([*held, *(prefix_worker(worker, reason) for worker, reason in self._pauses.items())])

    @property
    def first_problem(self) -> str:
        """Why the last request failed, while no request of this run was answered; empty afterwards."""
        return "" if self.turns else self._last_retry

    @property
    def is_flow(self) -> bool:
        return "" not in self.stages

    @property
    def has_started(self) -> bool:
        return any(stage.stats.run is not None for stage in self.stages.values())

    @property
    def run_stats(self) -> RunStats:
        """Statistics of a run that is not a flow."""
        return self.stages[""].stats

    @property
    def turn_usage(self) -> Usage:
        return sum((stage.turn_tokens.usage for stage in self.stages.values()), NO_USAGE)

    @property
    def failed(self) -> int:
        return sum(stage.stats.failed for stage in self.stages.values())

    @property
    def resumed(self) -> int:
        return sum(stage.stats.resumed for stage in self.stages.values())

    @property
    def seconds_left(self) -> float | None:
        """Estimated time until the slowest stage ends; None if unknown for one of them."""
        left = [
            stage.seconds_left
            for stage in self.stages.values()
            if stage.total is None or stage.stats.done < stage.total
        ]
        return None if None in left else max((each for each in left if each is not None), default=0.0)

    @property
    def cost(self) -> float | None:
        """Cost of the turns so far; None if the price of a stage is unknown."""
        costs = [stage.cost for stage in self.stages.values() if stage.stats.run is not None]
        return None if None in costs else sum(cost for cost in costs if cost is not None)
