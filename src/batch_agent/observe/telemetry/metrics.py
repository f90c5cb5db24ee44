"""Prometheus metrics of a run. Updated in a background thread, so that the run does not wait."""

import threading
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from ...core.errors import SpecError
from ...core.events import (
    AgentFinished,
    AgentReassigned,
    AgentStarted,
    CallsEnded,
    CallsStarted,
    Event,
    ItemQueued,
    LoadSampled,
    Paused,
    RequestRetried,
    Resumed,
    RunStarted,
    Steered,
    ToolsUsed,
    TurnEnded,
    TurnStarted,
    unwrap,
)
from ...core.requests import Usage
from ..run_stats import CapacityTotals
from .stage_metrics import GaugeContributions, StageMetrics

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from .families import Families

_NO_LABELS: Mapping[str, str] = MappingProxyType({})


class Metrics:
    """`BatchAgent.run(..., events=[Metrics(port=9100)])` serves http://127.0.0.1:9100/metrics during the run.

    Without a port, it fills `registry`, or the default one of prometheus_client, for you to serve or push. All runs
    of a registry share its counters. One object can be used for several runs, also concurrently."""

    def __init__(
        self,
        port: int | None = None,
        host: str = "127.0.0.1",
        registry: "CollectorRegistry | None" = None,
        labels: Mapping[str, str] = _NO_LABELS,
    ) -> None:
        """`port`: opened immediately; 0 picks a free one. `labels`: added to all metrics, such as a job name. Raises
        SpecError."""
        try:
            from prometheus_client import REGISTRY

            from .exposition import MetricsServer
            from .families import families_of
        except ImportError as error:
            raise SpecError("Metrics need prometheus-client: pip install 'batch-agent[metrics]'.") from error
        chosen = REGISTRY if registry is None else registry
        self._families = families_of(chosen, tuple(labels))
        self._values = tuple(map(str, labels.values()))
        self._server = None if port is None else MetricsServer(port, host, chosen)
        self._runs: dict[int, _Run] = {}  # by thread: each run has its own
        self._lock = threading.Lock()

    @property
    def url(self) -> str | None:
        """URL of the metrics; None without a port."""
        return None if self._server is None else self._server.url

    def take(self, at: float, event: Event) -> None:
        run = self._runs.get(threading.get_ident()) or self._start_run()
        run.take(event)

    def flush(self) -> None:
        run = self._runs.get(threading.get_ident())
        if run is not None:
            run.write()

    def close(self) -> None:
        """Ends the run of this thread: removes its part of the gauges, and keeps the counters. The last run closes the
        port."""
        with self._lock:
            run = self._runs.pop(threading.get_ident(), None)
            if run is not None:
                run.write()
                run.close()
            if self._server is not None and not self._runs:
                self._server.close()

    def _start_run(self) -> "_Run":
        with self._lock:
            run = self._runs[threading.get_ident()] = _Run(self._families, self._values)
            if self._server is not None:
                self._server.open()
        return run


class _Run:
    """Metrics of one run with all its stages."""

    def __init__(self, families: "Families", constant: tuple[str, ...]) -> None:
        """`constant`: values of the user's labels."""
        self._families = families
        self._constant = constant
        self._gauges = GaugeContributions()
        self._stages: dict[str, StageMetrics] = {}
        self._queued: Counter[str] = Counter()
        self._capacity = CapacityTotals()
        self._paused: set[str] = set()
        """Names of the paused workers."""

    def take(self, event: Event) -> None:
        self._apply(*unwrap(event))

    def write(self) -> None:
        for stage in self._stages.values():
            stage.write()

    def close(self) -> None:
        self._gauges.clear()

    def _apply(self, name: str, worker: str, event: Event) -> None:
        match event:
            case TurnStarted():
                self._stages[name].agents.set(event.key, "generating")
            case TurnEnded():
                self._stages[name].on_turn_ended(event)
            case CallsStarted():
                self._stages[name].agents.set(event.key, "in tools")
            case CallsEnded():
                self._stages[name].on_calls_ended(event)
            case AgentStarted():
                self._stages[name].on_agent_started(event.key)
            case AgentReassigned():
                self._stages[name].on_agent_reassigned(event.key)
            case AgentFinished():
                self._stages[name].on_agent_finished(event.result, is_resumed=event.resumed)
            case RequestRetried():
                self._stages[name].on_request_retried(event)
            case RunStarted():
                labels = (*self._constant, name, event.backend, event.model)
                self._stages[name] = StageMetrics(self._families, self._gauges, labels, event)
                self._stages[name].set_expected(max(event.total or 0, self._queued[name]))
            case ItemQueued():
                self._queued[name] += 1
                if name in self._stages:
                    self._stages[name].set_expected(self._queued[name])
            case LoadSampled():
                self._set_load(self._capacity.add(worker, event))
            case Paused() | Resumed():
                (self._paused.add if isinstance(event, Paused) else self._paused.discard)(worker)
                self._gauges.set(self._families.paused, self._constant, bool(self._paused))
            case Steered():
                self._steered(name, event)
            case ToolsUsed():
                self._add_summaries(event.summaries)
            case _:
                pass

    def _steered(self, name: str, event: Steered) -> None:
        if event.agents and name in self._stages:
            self._stages[name].expect(event.agents)
        if event.name == "pause":
            (self._paused.add if event.after == "yes" else self._paused.discard)("by the user")
            self._gauges.set(self._families.paused, self._constant, bool(self._paused))

    def _set_load(self, sample: LoadSampled) -> None:
        families, labels = self._families, (*self._constant, sample.backend)
        for gauge, value in (
            (families.slots_in_use, sample.inflight),
            (families.slots_limit, sample.limit),
            (families.slots_waiting, sample.waiting),
            (families.residents, sample.residents),
            (families.kv_held, sample.kv_held),
            (families.kv_limit, sample.kv_limit),
        ):
            if value is not None:
                self._gauges.set(gauge, labels, value)
        if sample.kv_usage is not None:
            self._gauges.replace(families.kv_usage, labels, sample.kv_usage)

    def _add_summaries(self, usage: Usage) -> None:
        """Adds the usage of summaries, which belong to no agent; in a flow, to no stage either."""
        if "" in self._stages:
            self._stages[""].add_usage(usage)
            return
        kinds = {
            "input": usage.input, "cached": usage.cached, "written": usage.all_written, "output": usage.output,
        }  # fmt: skip
        for kind, count in kinds.items():
            self._families.tokens.labels(*self._constant, "", "", "", kind).inc(count)
