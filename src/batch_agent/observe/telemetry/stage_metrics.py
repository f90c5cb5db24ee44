"""Prometheus metrics of one stage."""

from collections import defaultdict
from typing import TYPE_CHECKING

from ...core.events import CallsEnded, RequestRetried, RunStarted, TurnEnded
from ...core.requests import Usage
from ...core.results import AgentResult, CallRecord
from ...version import __version__
from ..agent_states import AgentStates

if TYPE_CHECKING:
    import prometheus_client
    from prometheus_client import Gauge

    from .families import Families

_MAX_TOOLS = 100
"""Maximum number of tool labels. Models also call tools that do not exist, and each name would be a time series."""
_OTHER = "other"


class GaugeContributions:
    """The contribution of one run to gauges that it shares with other runs."""

    def __init__(self) -> None:
        self._values: dict[tuple[Gauge, tuple[str, ...]], float] = {}
        self._replaced: set[tuple[Gauge, tuple[str, ...]]] = set()

    def set(self, gauge: "Gauge", labels: tuple[str, ...], value: float) -> None:
        before = self._values.get((gauge, labels), 0.0)
        self._values[gauge, labels] = value
        _child(gauge, labels).inc(value - before)

    def replace(self, gauge: "Gauge", labels: tuple[str, ...], value: float) -> None:
        """Sets a gauge that has the same value for all runs, so it is not a sum."""
        self._replaced.add((gauge, labels))
        _child(gauge, labels).set(value)

    def clear(self) -> None:
        for gauge, labels in list(self._values):
            self.set(gauge, labels, 0.0)
        for gauge, labels in self._replaced:
            _child(gauge, labels).set(0.0)


class StageMetrics:
    """Metrics of one stage of a flow, or of a run without stages. Counts are collected and written in batches, because
    Prometheus' counters are slow."""

    def __init__(
        self,
        families: "Families",
        gauges: GaugeContributions,
        labels: tuple[str, ...],
        run: RunStarted,
    ) -> None:
        self.labels = labels
        self.agents = AgentStates()
        self._families = families
        self._gauges = gauges
        self._run = run
        self._tools: set[str] = set()
        self._expected = self._started = self._done = 0
        self._counted: defaultdict[tuple[prometheus_client.Counter, tuple[str, ...]], float] = defaultdict(float)
        self._turn, self._ttft = families.turn.labels(*labels), families.ttft.labels(*labels)
        self._queue, self._agent = families.queue.labels(*labels), families.agent.labels(*labels)
        self._counted[families.finished, ("answered", "")] = (
            0  # exported from the start, so that rate() sees the first increase
        )
        gauges.set(families.info, (*labels, __version__), 1)

    def set_expected(self, inputs: int) -> None:
        self._expected = inputs

    def expect(self, more: int) -> None:
        """Adds to the number of expected inputs."""
        self._expected += more

    def on_agent_started(self, key: str) -> None:
        self._started += 1
        self.agents.add(key)

    def on_agent_reassigned(self, key: str) -> None:
        """Handles an agent that another worker resumes or restarts."""
        self._started -= key in self.agents
        self.agents.remove(key)

    def on_turn_ended(self, event: TurnEnded) -> None:
        self.agents.set(event.key, "waiting")
        self._turn.observe(event.seconds)
        self._queue.observe(event.queued)
        if event.ttft is not None:
            self._ttft.observe(event.ttft)
        self.add_usage(event.usage)

    def add_usage(self, usage: Usage) -> None:
        if (cost := self._run.cost(usage)) is not None:
            self._counted[self._families.cost, ()] += cost
        tokens = self._families.tokens
        self._counted[tokens, ("input",)] += usage.input
        self._counted[tokens, ("cached",)] += usage.cached
        self._counted[tokens, ("written",)] += usage.all_written
        self._counted[tokens, ("output",)] += usage.output

    def on_calls_ended(self, event: CallsEnded) -> None:
        self.agents.set(event.key, "waiting")
        for call in event.calls:
            tool = self._tool_label(call)
            self._counted[self._families.calls, (tool, call.source, "true" if call.ok else "false")] += 1
            if call.source == "executed":
                self._families.tool.labels(*self.labels, tool).observe(call.seconds)

    def on_request_retried(self, event: RequestRetried) -> None:
        self.agents.set(event.key, "waiting")
        self._counted[self._families.retries, (event.kind,)] += 1

    def on_agent_finished(self, result: AgentResult, *, is_resumed: bool) -> None:
        self._started += result.key not in self.agents
        self._done += 1
        self.agents.remove(result.key)
        error = "" if result.error is None else result.error.kind
        outcome = "resumed" if is_resumed else "failed" if error else "answered"
        self._counted[self._families.finished, (outcome, error)] += 1
        if not is_resumed:
            self._agent.observe(result.timing.total)

    def write(self) -> None:
        """Writes the counts since the last call, and the current gauges."""
        for (counter, labels), more in self._counted.items():
            counter.labels(*self.labels, *labels).inc(more)
        self._counted.clear()
        agents = self.agents
        for state, number in (
            ("waiting", agents.waiting),
            ("generating", agents.generating),
            ("tools", agents.in_tools),
        ):
            self._gauges.set(self._families.agents, (*self.labels, state), number)
        known = max(self._expected, self._started)
        self._gauges.set(self._families.inputs, self.labels, known)
        self._gauges.set(self._families.inputs_left, self.labels, known - self._done)

    def _tool_label(self, call: CallRecord) -> str:
        if call.name not in self._tools and len(self._tools) >= _MAX_TOOLS:
            return _OTHER
        self._tools.add(call.name)
        return call.name


def _child(gauge: "Gauge", labels: tuple[str, ...]) -> "Gauge":
    return gauge.labels(*labels) if labels else gauge
