"""Counts one stage for Prometheus."""

from collections import defaultdict
from importlib.metadata import version
from typing import TYPE_CHECKING

from ...core.events import CallsEnded, RequestRetried, RunStarted, TurnEnded
from ...core.requests import Usage
from ...core.results import AgentResult, CallRecord
from ..agent_states import AgentStates

if TYPE_CHECKING:
    import prometheus_client
    from prometheus_client import Gauge

    from .families import Families

_MOST_TOOLS = 100
"""Models also call tools that do not exist: their names must not fill a database."""
_OTHER = "other"


class ResidentShares:
    """What one run adds to gauges that others may add to as well."""

    def __init__(self) -> None:
        self._parts: dict[tuple[Gauge, tuple[str, ...]], float] = {}
        self._replaced: set[tuple[Gauge, tuple[str, ...]]] = set()

    def set(self, gauge: "Gauge", labels: tuple[str, ...], value: float) -> None:
        before = self._parts.get((gauge, labels), 0.0)
        self._parts[gauge, labels] = value
        _child(gauge, labels).inc(value - before)

    def replace(self, gauge: "Gauge", labels: tuple[str, ...], value: float) -> None:
        """For what is the same for all runs, and no sum."""
        self._replaced.add((gauge, labels))
        _child(gauge, labels).set(value)

    def leave(self) -> None:
        for gauge, labels in list(self._parts):
            self.set(gauge, labels, 0.0)
        for gauge, labels in self._replaced:
            _child(gauge, labels).set(0.0)


class StageMetrics:
    """One stage of a flow, or a run that is none. Counts go to Prometheus' own counters, which are slow, once for many
    events."""

    def __init__(
        self,
        families: "Families",
        parts: ResidentShares,
        labels: tuple[str, ...],
        run: RunStarted,
    ) -> None:
        self.labels = labels
        self.agents = AgentStates()
        self._families = families
        self._parts = parts
        self._run = run
        self._tools: set[str] = set()
        self._expected = self._begun = self._done = 0
        self._counted: defaultdict[tuple[prometheus_client.Counter, tuple[str, ...]], float] = defaultdict(float)
        self._turn, self._ttft = families.turn.labels(*labels), families.ttft.labels(*labels)
        self._queue, self._agent = families.queue.labels(*labels), families.agent.labels(*labels)
        self._counted[families.finished, ("answered", "")] = 0  # there from the start, so that the first make a rate
        parts.set(families.info, (*labels, version("batch-agent")), 1)

    def expects(self, inputs: int) -> None:
        self._expected = inputs

    def started(self, key: str) -> None:
        self._begun += 1
        self.agents.starts(key)

    def moved(self, key: str) -> None:
        """Another worker goes on with the agent, or begins it again."""
        self._begun -= key in self.agents
        self.agents.leaves(key)

    def turned(self, event: TurnEnded) -> None:
        self.agents.does(event.key, "waiting")
        self._turn.observe(event.seconds)
        self._queue.observe(event.queued)
        if event.ttft is not None:
            self._ttft.observe(event.ttft)
        self.spent(event.usage)

    def spent(self, usage: Usage) -> None:
        if (usd := self._run.cost(usage)) is not None:
            self._counted[self._families.cost, ()] += usd
        tokens = self._families.tokens
        self._counted[tokens, ("input",)] += usage.input
        self._counted[tokens, ("cached",)] += usage.cached
        self._counted[tokens, ("output",)] += usage.output

    def called(self, event: CallsEnded) -> None:
        self.agents.does(event.key, "waiting")
        for call in event.calls:
            tool = self._named(call)
            self._counted[self._families.calls, (tool, call.source, "true" if call.ok else "false")] += 1
            if call.source == "executed":
                self._families.tool.labels(*self.labels, tool).observe(call.seconds)

    def retried(self, event: RequestRetried) -> None:
        self.agents.does(event.key, "waiting")
        self._counted[self._families.retries, (event.kind,)] += 1

    def finished(self, result: AgentResult, *, is_resumed: bool) -> None:
        self._begun += result.key not in self.agents
        self._done += 1
        self.agents.leaves(result.key)
        error = "" if result.error is None else result.error.kind
        outcome = "resumed" if is_resumed else "failed" if error else "answered"
        self._counted[self._families.finished, (outcome, error)] += 1
        if not is_resumed:
            self._agent.observe(result.timing.total)

    def write(self) -> None:
        """What was counted since the last time, and how things are now."""
        for (counter, labels), more in self._counted.items():
            counter.labels(*self.labels, *labels).inc(more)
        self._counted.clear()
        agents = self.agents
        for state, number in (
            ("waiting", agents.waiting),
            ("generating", agents.generating),
            ("tools", agents.in_tools),
        ):
            self._parts.set(self._families.agents, (*self.labels, state), number)
        known = max(self._expected, self._begun)
        self._parts.set(self._families.inputs, self.labels, known)
        self._parts.set(self._families.inputs_left, self.labels, known - self._done)

    def _named(self, call: CallRecord) -> str:
        if call.name not in self._tools and len(self._tools) >= _MOST_TOOLS:
            return _OTHER
        self._tools.add(call.name)
        return call.name


def _child(gauge: "Gauge", labels: tuple[str, ...]) -> "Gauge":
    return gauge.labels(*labels) if labels else gauge
