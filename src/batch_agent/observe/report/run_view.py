"""View of a run for the report and the live page, computed from its events."""

from array import array
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, assert_never

from ...core.agent_config import sample_of, without_sample
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
    LimitChanged,
    LoadSampled,
    Notice,
    Paused,
    PrefixReported,
    RequestRetried,
    Resumed,
    RunStarted,
    SchedulingReported,
    StageEvent,
    Steered,
    ToolsUsed,
    TurnEnded,
    TurnStarted,
    WorkerEvent,
)
from ...core.requests import NO_USAGE, Usage
from ...core.run_reports import Scheduling
from ...plan.row_keys import is_row_key, row_key
from ..run_stats import CapacityTotals, RateEstimator
from ..text.text_format import prefix_worker
from .distribution import Distribution
from .result_rows import ResultRows
from .savings import AvoidedRepeats
from .series import Series
from .stage_view import StageView
from .timeline import ANSWERED, FAILED, IN_PROGRESS, Timeline
from .tool_uses import ToolUsages
from .worker_views import WorkerViews

_MAX_LIMITS = 50
_MAX_PAUSES = 500


class RunView:
    """View of a run. Mutable: every event updates it. Times are seconds from the start of the run. An agent that a
    later process restores from the checkpoint keeps its history in the log."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.processes: list[float] = []
        self.stages: dict[str, StageView] = {}
        self._rows = array("L")
        """Timeline row of each actor: an agent, or a chunk of a long input."""
        self.timeline = Timeline()
        self.results = ResultRows()
        self.series = Series()
        self.tools = ToolUsages()
        self.workers = WorkerViews()
        self.repeats = AvoidedRepeats()
        self.done = 0
        """Agents that finished in the logged processes."""
        self.throughput = RateEstimator()
        self.summaries = NO_USAGE
        self.outside_agents = NO_USAGE
        """Usage that belongs to no agent: by summaries and by the test of tool calls."""
        self.distributions = {name: Distribution() for name in ("ttft", "turn", "agent", "queued")}
        self.limits: deque[dict[str, Any]] = deque(maxlen=_MAX_LIMITS)
        self.pauses: deque[dict[str, Any]] = deque(maxlen=_MAX_PAUSES)
        self.steered: deque[dict[str, Any]] = deque(maxlen=_MAX_PAUSES)
        self.endpoints: deque[dict[str, Any]] = deque(maxlen=_MAX_PAUSES)
        """Endpoints that joined, drained or left."""
        """Changes that the user made during the run."""
        self.scheduling: Scheduling | None = None
        self._capacity = CapacityTotals()
        self._of_agents: dict[type, Callable[[float, StageView, str, Any], None]] = {
            AgentStarted: self._started,
            TurnStarted: self._turn_started,
            TurnEnded: self._turn_ended,
            CallsStarted: self._calls_started,
            CallsEnded: self._calls_ended,
            AgentFinished: self._finished,
        }
        """Frequent events, looked up here because that is faster than a match."""

    def start_process(self, at: float) -> None:
        """Notes that the following events come from another process, which resumes the run."""
        self.seconds = max(self.seconds, at)
        self.processes.append(at)
        self.timeline.start_process(at)
        self.tools.start_process()
        self.repeats.start_process()
        self._capacity = CapacityTotals()
        self.throughput = RateEstimator()
        self.throughput.update(at, self.done)
        for stage in self.stages.values():
            stage.queued = 0

    def take(self, at: float, event: Event) -> None:
        """Applies an event. Times must not decrease."""
        if not self.processes:
            self.start_process(0.0)
        self.seconds = at
        stage, worker, kind = None, "", event.__class__
        if kind is StageEvent:
            assert isinstance(event, StageEvent)
            stage, event = self._stage(event.stage), event.event
            kind = event.__class__
        if kind is WorkerEvent:
            assert isinstance(event, WorkerEvent)
            worker, event = event.worker, event.event
            kind = event.__class__
        apply = self._of_agents.get(kind)
        if apply is None:
            self._apply(at, stage, worker, event)
        else:
            apply(at, stage or self.stages.get("") or self._stage(""), worker, event)

    def key(self, stage: str, index: int, sample: int = 0) -> str | None:
        """The key of the agent with this index and sample; None if there is none."""
        actors = self.stages[stage].actors if stage in self.stages else {}
        where = self.timeline.index
        found = [key for key, actor in actors.items() if where[self._rows[actor]] == index and "." not in key]
        keys = [key for key in found if sample_of(key) == sample]
        return keys[-1] if keys else None

    def row_keys(self, rows: Iterable[int]) -> dict[str, list[str]]:
        """The key column for these rows, as results show it; empty for a run without `key=`."""
        known = {
            self._rows[actor]: row_key(key)
            for stage in self.stages.values()
            for key, actor in stage.actors.items()
            if is_row_key(key) and "." not in key
        }
        return {"key": [known.get(row, "") for row in rows]} if known else {}

    def answers(self, rows: Iterable[int]) -> list[tuple[str, str, int] | None]:
        """Stage, key of the input as results show it, and sample of each row."""
        known = {
            self._rows[actor]: (name, row_key(without_sample(key)), sample_of(key))
            for name, stage in self.stages.items()
            for key, actor in stage.actors.items()
            if "." not in key
        }
        return [known.get(row) for row in rows]

    def _apply(self, at: float, stage: StageView | None, worker: str, event: Event) -> None:
        """`stage`: None for events of the whole run, and for runs without stages. `worker`: empty for the process that
        writes the log."""
        match event:
            case RequestRetried():
                self._retried(at, stage or self._stage(""), event)
            case LoadSampled():
                self.series.take(at, self._capacity.add(worker, event))
            case AgentReassigned():
                self._reassigned(at, stage or self._stage(""), event)
            case ItemQueued():
                (stage or self._stage("")).queued += 1
            case RunStarted():
                (stage or self._stage("")).begin(event)
            case FlowStarted():
                for name in event.stages:
                    self._stage(name)
            case LimitChanged():
                reason = prefix_worker(worker, event.reason)
                self.limits.append({"at": round(at, 2), "inflight": event.inflight, "reason": reason})
            case Paused():
                reason = prefix_worker(worker, event.reason)
                self.pauses.append({"at": round(at, 2), "seconds": round(event.seconds, 2), "reason": reason})
            case EndpointChanged():
                change = prefix_worker(worker, str(event))
                self.endpoints.append({"at": round(at, 2), "change": change})
            case Steered():
                self.steered.append({"at": round(at, 2), "change": str(event)})
                if event.agents:
                    (stage or self._stage("")).added += event.agents
            case ToolsUsed():
                self.tools.add_reports(event.tools, worker)
                self._add_summaries(event.summaries)
            case SchedulingReported():
                self.scheduling = event.scheduling
            case PrefixReported():
                (stage or self._stage("")).prefix = event.prefix
            case AgentStarted() | TurnStarted() | TurnEnded() | CallsStarted() | CallsEnded() | AgentFinished():
                pass  # handled by `_of_agents`
            case Notice() | Resumed() | BudgetReported() | CallbackFailed() | StageEvent() | WorkerEvent():
                pass  # not shown, or known from other events
            case _:
                assert_never(event)

    def _turn_started(self, at: float, stage: StageView, worker: str, event: TurnStarted) -> None:
        actor = stage.actors.get(event.key) or self._actor(stage, event.key)
        if actor is not None:
            self.repeats.start_turn(actor, event.turn)
            self.timeline.add_generating(at, self._rows[actor], 1)

    def _turn_ended(self, at: float, stage: StageView, worker: str, event: TurnEnded) -> None:
        stage.turns += 1
        stage.used.add(event.usage)
        self.workers.add_turn(worker, event.usage, stage.cost(event.usage))
        self.distributions["turn"].add(event.seconds)
        self.distributions["queued"].add(event.queued)
        if event.ttft is not None:
            self.distributions["ttft"].add(event.ttft)
        actor = stage.actors.get(event.key) or self._actor(stage, event.key)
        if actor is not None:
            self.repeats.end_turn(actor, event.usage)
            self.timeline.add_generating(at, self._rows[actor], -1)

    def _calls_started(self, at: float, stage: StageView, worker: str, event: CallsStarted) -> None:
        actor = stage.actors.get(event.key) or self._actor(stage, event.key)
        if actor is not None:
            self.repeats.start_calls(actor)
            self.timeline.add_calling(at, self._rows[actor], 1)

    def _calls_ended(self, at: float, stage: StageView, worker: str, event: CallsEnded) -> None:
        self.tools.add_calls(event.calls, worker)
        actor = stage.actors.get(event.key) or self._actor(stage, event.key)
        if actor is not None:
            self.timeline.add_calling(at, self._rows[actor], -1)

    def _retried(self, at: float, stage: StageView, event: RequestRetried) -> None:
        stage.retries += 1
        actor = self._actor(stage, event.key)
        if actor is not None:
            self.repeats.retry(actor)
            self.timeline.add_generating(at, self._rows[actor], -1)

    def _started(self, at: float, stage: StageView, worker: str, event: AgentStarted) -> None:
        actor = stage.actors.get(event.key)
        row = self._add_agent(at, stage, event.key, event.index) if actor is None else self._rows[actor]
        stage.clear_failure(row)
        self.workers.assign(worker, row)
        self.timeline.start(at, row, event.index)

    def _reassigned(self, at: float, stage: StageView, event: AgentReassigned) -> None:
        actor = stage.actors.get(event.key)
        if actor is not None:
            self.repeats.reassign(actor)
            self.workers.release(self._rows[actor])
            self.timeline.remove(at, self._rows[actor])

    def _finished(self, at: float, stage: StageView, worker: str, event: AgentFinished) -> None:
        result, timeline = event.result, self.timeline
        actor = stage.actors.get(result.key)
        row = self._add_agent(at, stage, result.key, result.index) if actor is None else self._rows[actor]
        if event.resumed:
            timeline.restored_by[row] = timeline.last_process[row] = timeline.process
            self.repeats.restore(result.usage)
            if actor is None:
                stage.add_restored(result)
                self.tools.add_restored(result.tool_calls)
            elif timeline.outcome[row] != IN_PROGRESS:
                timeline.index[row] = result.index
                return
        elif actor is not None:
            self.distributions["agent"].add(result.timing.total)
        if not event.resumed:
            self.done += 1
            self.throughput.update(at, self.done)
        self.workers.finish(row)
        stage.clear_failure(row)
        timeline.finish(at, row, ANSWERED if result.ok else FAILED)
        self.results.finish(row, result, stage.cost(result.usage))
        stage.finished(at, row, event)

    def _add_summaries(self, usage: Usage) -> None:
        """Adds the usage of summaries, which belong to no agent; in a flow, to no stage either."""
        self.outside_agents += usage
        if "" in self.stages:
            self.stages[""].used.add(usage)
        else:
            self.summaries += usage

    def _stage(self, name: str) -> StageView:
        stage = self.stages.get(name)
        if stage is None:
            stage = self.stages[name] = StageView(name, len(self.stages))
        return stage

    def _actor(self, stage: StageView, key: str) -> int | None:
        """The actor with this key; None if the log does not contain the start of its agent."""
        actor = stage.actors.get(key)
        if actor is None and "." in key:
            agent = stage.actors.get(key.partition(".")[0])
            return None if agent is None else self._add_actor(stage, key, self._rows[agent])
        return actor

    def _add_agent(self, at: float, stage: StageView, key: str, index: int) -> int:
        row = self.timeline.add(at, stage.number, index, sample_of(key))
        self.results.add()
        stage.agents += 1
        self._add_actor(stage, key, row)
        return row

    def _add_actor(self, stage: StageView, key: str, row: int) -> int:
        actor = stage.actors[key] = len(self._rows)
        self._rows.append(row)
        self.repeats.add()
        return actor
