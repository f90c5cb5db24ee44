"""The view of a run, folded from its events: what the report and the live page show."""

from array import array
from collections import deque
from typing import Any, assert_never

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
    ToolsUsed,
    TurnEnded,
    TurnStarted,
    WorkerEvent,
)
from ...core.requests import NO_USAGE, Usage
from ...core.run_reports import Scheduling
from ..run_stats import CapacityTotals, RateEstimator
from ..text.formatting import prefix_worker
from .distribution import Distribution
from .savings import RepeatedReads
from .series import Series
from .stage_view import StageView
from .timeline import ANSWERED, FAILED, UNDER_WAY, Timeline
from .tool_uses import ToolUsages
from .workers import WorkerViews

_MOST_LIMITS = 50
_MOST_PAUSES = 500


class RunView:
    """Mutable on purpose: events go in one by one, the model of the page comes out at any time. Times are seconds from
    the beginning of the run. An agent that a later process has from the checkpoint stays as the log tells it."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.processes: list[float] = []
        self.stages: dict[str, StageView] = {}
        self._rows = array("L")
        """Of each agent and each part of a long input: where its agent is in the timeline."""
        self.timeline = Timeline()
        self.series = Series()
        self.tools = ToolUsages()
        self.workers = WorkerViews()
        self.repeats = RepeatedReads()
        self.done = 0
        """Agents, in the processes that the log tells of."""
        self.pace = RateEstimator()
        self.summaries = NO_USAGE
        self.spread = {name: Distribution() for name in ("ttft", "turn", "agent", "queued")}
        self.limits: deque[dict[str, Any]] = deque(maxlen=_MOST_LIMITS)
        self.pauses: deque[dict[str, Any]] = deque(maxlen=_MOST_PAUSES)
        self.scheduling: Scheduling | None = None
        self._fullness = CapacityTotals()

    def begins_process(self, at: float) -> None:
        """What comes next is of another process, which goes on with the run."""
        self.seconds = max(self.seconds, at)
        self.processes.append(at)
        self.timeline.begins_process(at)
        self.tools.begins_process()
        self.repeats.begins_process()
        self._fullness = CapacityTotals()
        self.pace = RateEstimator()
        self.pace.mark(at, self.done)
        for stage in self.stages.values():
            stage.came = 0

    def take(self, at: float, event: Event) -> None:
        """Times never go back."""
        if not self.processes:
            self.begins_process(0.0)
        self.seconds = at
        stage, worker = None, ""
        if isinstance(event, StageEvent):
            stage, event = self._stage(event.stage), event.event
        if isinstance(event, WorkerEvent):
            worker, event = event.worker, event.event
        self._happened(at, stage, worker, event)

    def key(self, stage: str, index: int) -> str | None:
        """Of the agent with this index; None where nobody has it."""
        actors = self.stages[stage].actors if stage in self.stages else {}
        where = self.timeline.index
        keys = [key for key, actor in actors.items() if where[self._rows[actor]] == index and "." not in key]
        return keys[-1] if keys else None

    def _happened(self, at: float, stage: StageView | None, worker: str, event: Event) -> None:
        """`stage`: None for what concerns the whole run, and for all of a run without stages. `worker`: empty for the
        process whose log it is."""
        match event:
            case TurnStarted():
                self._turn_started(at, stage or self._stage(""), event)
            case TurnEnded():
                self._turn_ended(at, stage or self._stage(""), worker, event)
            case CallsStarted():
                self._calls_started(at, stage or self._stage(""), event)
            case CallsEnded():
                self._calls_ended(at, stage or self._stage(""), worker, event)
            case RequestRetried():
                self._retried(at, stage or self._stage(""), event)
            case LoadSampled():
                self.series.take(at, self._fullness.together(worker, event))
            case AgentStarted():
                self._started(at, stage or self._stage(""), worker, event)
            case AgentReassigned():
                self._moved(at, stage or self._stage(""), event)
            case AgentFinished():
                self._finished(at, stage or self._stage(""), event)
            case ItemQueued():
                (stage or self._stage("")).came += 1
            case RunStarted():
                (stage or self._stage("")).began = event
            case FlowStarted():
                for name in event.stages:
                    self._stage(name)
            case LimitChanged():
                reason = prefix_worker(worker, event.reason)
                self.limits.append({"at": round(at, 2), "inflight": event.inflight, "reason": reason})
            case Paused():
                reason = prefix_worker(worker, event.reason)
                self.pauses.append({"at": round(at, 2), "seconds": round(event.seconds, 2), "reason": reason})
            case ToolsUsed():
                self.tools.told(event.tools, worker)
                self._summarized(event.summaries)
            case SchedulingReported():
                self.scheduling = event.scheduling
            case PrefixReported():
                (stage or self._stage("")).prefix = event.prefix
            case Notice() | Resumed() | BudgetReported() | CallbackFailed() | StageEvent() | WorkerEvent():
                pass  # a notice is of the moment, a pause says its length, and spending follows from tokens and prices
            case _:
                assert_never(event)

    def _turn_started(self, at: float, stage: StageView, event: TurnStarted) -> None:
        actor = self._actor(stage, event.key)
        if actor is not None:
            self.repeats.turn_starts(actor, event.turn)
            self.timeline.generates(at, self._rows[actor], 1)

    def _turn_ended(self, at: float, stage: StageView, worker: str, event: TurnEnded) -> None:
        stage.turn_ended(event.usage)
        self.workers.turned(worker, event.usage)
        self.spread["turn"].add(event.seconds)
        self.spread["queued"].add(event.queued)
        if event.ttft is not None:
            self.spread["ttft"].add(event.ttft)
        actor = self._actor(stage, event.key)
        if actor is not None:
            self.repeats.turn_ends(actor, event.usage)
            self.timeline.generates(at, self._rows[actor], -1)

    def _calls_started(self, at: float, stage: StageView, event: CallsStarted) -> None:
        actor = self._actor(stage, event.key)
        if actor is not None:
            self.repeats.calls(actor)
            self.timeline.calls(at, self._rows[actor], 1)

    def _calls_ended(self, at: float, stage: StageView, worker: str, event: CallsEnded) -> None:
        self.tools.called(event.calls, worker)
        actor = self._actor(stage, event.key)
        if actor is not None:
            self.timeline.calls(at, self._rows[actor], -1)

    def _retried(self, at: float, stage: StageView, event: RequestRetried) -> None:
        stage.retries += 1
        actor = self._actor(stage, event.key)
        if actor is not None:
            self.repeats.is_sent_again(actor)
            self.timeline.generates(at, self._rows[actor], -1)

    def _started(self, at: float, stage: StageView, worker: str, event: AgentStarted) -> None:
        actor = stage.actors.get(event.key)
        row = self._add_agent(at, stage, event.key, event.index) if actor is None else self._rows[actor]
        stage.is_undone(row)
        self.workers.has(worker, row)
        self.timeline.starts(at, row, event.index)

    def _moved(self, at: float, stage: StageView, event: AgentReassigned) -> None:
        actor = stage.actors.get(event.key)
        if actor is not None:
            self.repeats.moves(actor)
            self.workers.left(self._rows[actor])
            self.timeline.leaves(at, self._rows[actor])

    def _finished(self, at: float, stage: StageView, event: AgentFinished) -> None:
        result, timeline = event.result, self.timeline
        actor = stage.actors.get(result.key)
        row = self._add_agent(at, stage, result.key, result.index) if actor is None else self._rows[actor]
        if event.resumed:
            timeline.recalled[row] = timeline.seen[row] = timeline.process
            self.repeats.is_recalled(result.usage)
            if actor is None:
                stage.is_recalled(result)
                self.tools.recalled(result.tool_calls)
            elif timeline.outcome[row] != UNDER_WAY:
                timeline.index[row] = result.index
                return
        elif actor is not None:
            self.spread["agent"].add(result.timing.total)
        if not event.resumed:
            self.done += 1
            self.pace.mark(at, self.done)
        self.workers.ended(row)
        stage.is_undone(row)
        timeline.ends(at, row, ANSWERED if result.ok else FAILED)
        stage.finished(at, row, event)

    def _summarized(self, usage: Usage) -> None:
        """Summaries belong to no agent; in a flow, to no stage either."""
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
        """None where the log misses the agent's beginning."""
        actor = stage.actors.get(key)
        if actor is None and "." in key:
            agent = stage.actors.get(key.partition(".")[0])
            return None if agent is None else self._add_actor(stage, key, self._rows[agent])
        return actor

    def _add_agent(self, at: float, stage: StageView, key: str, index: int) -> int:
        row = self.timeline.add(at, stage.number, index)
        stage.agents += 1
        self._add_actor(stage, key, row)
        return row

    def _add_actor(self, stage: StageView, key: str, row: int) -> int:
        actor = stage.actors[key] = len(self._rows)
        self._rows.append(row)
        self.repeats.add()
        return actor
