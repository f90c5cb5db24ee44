"""The view of a run, folded from its events: what the report and the live page show."""

from array import array
from collections import Counter, deque
from collections.abc import Collection, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, assert_never

from ...core.events import (
    AgentFinished,
    AgentStarted,
    CallsEnded,
    CallsStarted,
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
    Sampled,
    Scheduled,
    Shared,
    Spent,
    ToolsUsed,
    TurnEnded,
    TurnStarted,
)
from ...core.requests import NO_USAGE, Usage
from ...core.scheduling import Scheduling
from ..growth import Growth
from .activity import GENERATING, TOOLS, WAITING
from .distribution import Distribution
from .savings import Repeats, savings
from .series import Series
from .stage_view import Counts, StageView
from .timeline import ANSWERED, FAILED, UNDER_WAY, Timeline
from .tool_uses import ToolUses

FORMAT = 1
_MOST_LIMITS = 50
_MOST_PAUSES = 500


class RunView:
    """Mutable on purpose: events go in one by one, the model of the page comes out at any time. Times are seconds from
    the beginning of the run. An agent that a later process has from the checkpoint stays as the log tells it."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.processes: list[float] = []
        self._stages: dict[str, StageView] = {}
        self._rows = array("L")
        """Of each agent and each part of a long input: where its agent is in the timeline."""
        self._timeline = Timeline()
        self._series = Series()
        self._tools = ToolUses()
        self._repeats = Repeats()
        self._done = 0
        """Agents, in the processes that the log tells of."""
        self._pace = Growth()
        self._summaries = NO_USAGE
        self._spread = {name: Distribution() for name in ("ttft", "turn", "agent", "queued")}
        self._limits: deque[dict[str, Any]] = deque(maxlen=_MOST_LIMITS)
        self._pauses: deque[dict[str, Any]] = deque(maxlen=_MOST_PAUSES)
        self._scheduling: Scheduling | None = None

    def begins_process(self, at: float) -> None:
        """What comes next is of another process, which goes on with the run."""
        self.seconds = max(self.seconds, at)
        self.processes.append(at)
        self._timeline.begins_process(at)
        self._tools.begins_process()
        self._repeats.begins_process()
        self._pace = Growth()
        self._pace.mark(at, self._done)
        for stage in self._stages.values():
            stage.came = 0

    def take(self, at: float, event: Event) -> None:
        """Times never go back."""
        if not self.processes:
            self.begins_process(0.0)
        self.seconds = at
        if isinstance(event, InStage):
            self._happened(at, self._stage(event.stage), event.event)
        else:
            self._happened(at, None, event)

    def key(self, stage: str, index: int) -> str | None:
        """Of the agent with this index; None where nobody has it."""
        actors = self._stages[stage].actors if stage in self._stages else {}
        where = self._timeline.index
        keys = [key for key, actor in actors.items() if where[self._rows[actor]] == index and "." not in key]
        return keys[-1] if keys else None

    def as_json(
        self, *, title: str, began: float | None, now: float, is_running: bool, is_closed: bool
    ) -> dict[str, Any]:
        """`began`, `now`: seconds since the epoch. `is_closed`: the last process came to an end by itself."""
        shown = self._shown()
        counts = self._counts(shown, is_running=is_running)
        stages = [stage.as_json(counts[stage.number], shown.__contains__) for stage in self._stages.values()]
        turns = sum((stage.used.usage for stage in self._stages.values()), self._summaries)
        state = "running" if is_running else "finished" if self._is_done(counts, is_closed) else "ended early"
        tools = self._tools.all()
        return {
            "format": FORMAT,
            "title": title,
            "state": state,
            "began": began,
            "seconds": round(self.seconds, 3),
            "processes": [round(at, 3) for at in self.processes],
            "now": round(now, 3),
            "version": _version(),
            "stages": stages,
            "throughput": self._throughput(counts, is_running=is_running),
            "series": self._series.as_json(),
            "activity": self._timeline.activity.as_json(self.seconds),
            "timeline": self._timeline.as_json(self.seconds, shown),
            "distributions": {name: each.as_json() for name, each in self._spread.items()}
            | {"tool": self._tools.durations.as_json()},
            "tools": [tool.as_json() for tool in tools],
            "limits": list(self._limits),
            "pauses": list(self._pauses),
            "scheduling": None if self._scheduling is None else _scheduling(self._scheduling),
            "savings": [each.as_json() for each in savings(turns, tools, self._repeats)],
        }

    def _happened(self, at: float, stage: StageView | None, event: Event) -> None:
        """`stage`: None for what concerns the whole run, and for all of a run without stages."""
        match event:
            case TurnStarted():
                self._turn_started(at, stage or self._stage(""), event)
            case TurnEnded():
                self._turn_ended(at, stage or self._stage(""), event)
            case CallsStarted():
                self._calls_started(at, stage or self._stage(""), event)
            case CallsEnded():
                self._calls_ended(at, stage or self._stage(""), event)
            case RequestRetried():
                self._retried(at, stage or self._stage(""), event)
            case Sampled():
                self._series.take(at, event)
            case AgentStarted():
                self._started(at, stage or self._stage(""), event)
            case AgentFinished():
                self._finished(at, stage or self._stage(""), event)
            case Queued():
                (stage or self._stage("")).came += 1
            case RunStarted():
                (stage or self._stage("")).began = event
            case FlowStarted():
                for name in event.stages:
                    self._stage(name)
            case LimitChanged():
                self._limits.append({"at": round(at, 2), "inflight": event.inflight, "reason": event.reason})
            case Paused():
                self._pauses.append({"at": round(at, 2), "seconds": round(event.seconds, 2), "reason": event.reason})
            case ToolsUsed():
                self._tools.told(event.tools)
                self._summarized(event.summaries)
            case Scheduled():
                self._scheduling = event.scheduling
            case Shared():
                (stage or self._stage("")).prefix = event.prefix
            case Notice() | Resumed() | Spent() | InStage():
                pass  # a notice is of the moment, a pause says its length, and spending follows from tokens and prices
            case _:
                assert_never(event)

    def _turn_started(self, at: float, stage: StageView, event: TurnStarted) -> None:
        actor = self._actor(stage, event.key)
        if actor is not None:
            self._repeats.turn_starts(actor, event.turn)
            self._timeline.generates(at, self._rows[actor], 1)

    def _turn_ended(self, at: float, stage: StageView, event: TurnEnded) -> None:
        stage.turn_ended(event.usage)
        self._spread["turn"].add(event.seconds)
        self._spread["queued"].add(event.queued)
        if event.ttft is not None:
            self._spread["ttft"].add(event.ttft)
        actor = self._actor(stage, event.key)
        if actor is not None:
            self._repeats.turn_ends(actor, event.usage)
            self._timeline.generates(at, self._rows[actor], -1)

    def _calls_started(self, at: float, stage: StageView, event: CallsStarted) -> None:
        actor = self._actor(stage, event.key)
        if actor is not None:
            self._repeats.calls(actor)
            self._timeline.calls(at, self._rows[actor], 1)

    def _calls_ended(self, at: float, stage: StageView, event: CallsEnded) -> None:
        self._tools.called(event.calls)
        actor = self._actor(stage, event.key)
        if actor is not None:
            self._timeline.calls(at, self._rows[actor], -1)

    def _retried(self, at: float, stage: StageView, event: RequestRetried) -> None:
        stage.retries += 1
        actor = self._actor(stage, event.key)
        if actor is not None:
            self._repeats.is_sent_again(actor)
            self._timeline.generates(at, self._rows[actor], -1)

    def _started(self, at: float, stage: StageView, event: AgentStarted) -> None:
        actor = stage.actors.get(event.key)
        row = self._add_agent(at, stage, event.key, event.index) if actor is None else self._rows[actor]
        stage.is_undone(row)
        self._timeline.starts(at, row, event.index)

    def _finished(self, at: float, stage: StageView, event: AgentFinished) -> None:
        result, timeline = event.result, self._timeline
        actor = stage.actors.get(result.key)
        row = self._add_agent(at, stage, result.key, result.index) if actor is None else self._rows[actor]
        if event.resumed:
            timeline.recalled[row] = timeline.seen[row] = timeline.process
            self._repeats.is_recalled(result.usage)
            if actor is None:
                stage.is_recalled(result)
                self._tools.recalled(result.tool_calls)
            elif timeline.outcome[row] != UNDER_WAY:
                timeline.index[row] = result.index
                return
        elif actor is not None:
            self._spread["agent"].add(result.timing.total)
        if not event.resumed:
            self._done += 1
            self._pace.mark(at, self._done)
        stage.is_undone(row)
        timeline.ends(at, row, ANSWERED if result.ok else FAILED)
        stage.finished(at, row, event)

    def _summarized(self, usage: Usage) -> None:
        """Summaries belong to no agent; in a flow, to no stage either."""
        if "" in self._stages:
            self._stages[""].used.add(usage)
        else:
            self._summaries += usage

    def _stage(self, name: str) -> StageView:
        stage = self._stages.get(name)
        if stage is None:
            stage = self._stages[name] = StageView(name, len(self._stages))
        return stage

    def _actor(self, stage: StageView, key: str) -> int | None:
        """None where the log misses the agent's beginning."""
        actor = stage.actors.get(key)
        if actor is None and "." in key:
            agent = stage.actors.get(key.partition(".")[0])
            return None if agent is None else self._add_actor(stage, key, self._rows[agent])
        return actor

    def _add_agent(self, at: float, stage: StageView, key: str, index: int) -> int:
        row = self._timeline.add(at, stage.number, index)
        stage.agents += 1
        self._add_actor(stage, key, row)
        return row

    def _add_actor(self, stage: StageView, key: str, row: int) -> int:
        actor = stage.actors[key] = len(self._rows)
        self._rows.append(row)
        self._repeats.add()
        return actor

    def _shown(self) -> Collection[int]:
        """Rows of agents. Where a stage has more of them than it has inputs, other inputs or another task were asked
        before: then only those are shown that the last process had to do with."""
        changed = {stage.number for stage, total in self._final_totals() if stage.agents > total}
        timeline, rows = self._timeline, range(len(self._timeline))
        if not changed:
            return rows
        return dict.fromkeys(
            row for row in rows if timeline.stage[row] not in changed or timeline.seen[row] == timeline.process
        )

    def _final_totals(self) -> Iterator[tuple[StageView, int]]:
        """How many inputs stages have, as far as that will not change: of one that is fed by another, only once that
        has nothing more to give."""
        timeline = self._timeline
        done = Counter(
            timeline.stage[row]
            for row, outcome in enumerate(timeline.outcome)
            if outcome != UNDER_WAY and timeline.seen[row] == timeline.process
        )
        is_final = False
        for stage in self._stages.values():
            total = stage.came if is_final else _inputs(stage)
            if total is not None:
                yield stage, total
            is_final = total is not None and done[stage.number] >= total

    def _counts(self, shown: Collection[int], *, is_running: bool) -> list[Counts]:
        """Of each stage."""
        counts = [Counts() for _ in self._stages]
        timeline = self._timeline
        for row in shown:
            count, outcome = counts[timeline.stage[row]], timeline.outcome[row]
            count.started += 1
            count.answered += outcome == ANSWERED
            count.failed += outcome == FAILED
            count.resumed += timeline.recalled[row] == timeline.process
            if is_running and outcome == UNDER_WAY:
                doing = timeline.doing[row]
                count.waiting += doing == WAITING
                count.generating += doing == GENERATING
                count.tools += doing == TOOLS
        return counts

    def _is_done(self, counts: list[Counts], is_closed: bool) -> bool:
        for stage in self._stages.values():
            count = counts[stage.number]
            done = count.answered + count.failed
            if done < count.started or (not is_closed if stage.total is None else done < stage.total):
                return False
        return bool(self._stages)

    def _throughput(self, counts: list[Counts], *, is_running: bool) -> dict[str, float | None]:
        if not is_running:
            done = self._spread["agent"].count
            return {"per_second": round(done / self.seconds, 3) if self.seconds else None, "eta": None}
        self._pace.mark(self.seconds, self._done)
        pace = self._pace.rate
        known = [_inputs(stage) for stage in self._stages.values()]
        totals = [total for total in known if total is not None]
        left = sum(totals) - sum(count.answered + count.failed for count in counts)
        can_tell = pace and totals and len(totals) == len(known)
        return {
            "per_second": round(pace, 3) if pace else None,
            "eta": round(max(left, 0) / pace, 1) if pace and can_tell else None,
        }


@cache
def _version() -> str:
    try:
        return version("batch-agent")
    except PackageNotFoundError:  # its files alone were copied
        return ""


def _inputs(stage: StageView) -> int | None:
    """How many there are; None of inputs that are read, or come from another stage, one by one."""
    return stage.began.total if stage.began is not None else None


def _scheduling(how: Scheduling) -> dict[str, Any]:
    return {
        "kv_tokens": how.kv_tokens,
        "kv_limit": how.kv_limit,
        "most_residents": how.most_residents,
        "gave_up": how.gave_up,
        "guests": how.guests,
        "lost": how.lost,
    }
