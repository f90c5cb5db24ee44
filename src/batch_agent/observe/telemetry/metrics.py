"""The numbers of a run for Prometheus. Fed from a thread of its own; the run waits for nothing here."""

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
    StageEvent,
    ToolsUsed,
    TurnEnded,
    TurnStarted,
    WorkerEvent,
)
from ...core.requests import Usage
from ..run_stats import CapacityTotals
from .stage_metrics import ResidentShares, StageMetrics

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from .families import Families

_NO_LABELS: Mapping[str, str] = MappingProxyType({})


class Metrics:
    """`BatchAgent.run(..., events=[Metrics(port=9100)])` serves http://127.0.0.1:9100/metrics while the run goes.

    Without a port it fills `registry`, or the default one of prometheus_client, which is yours to serve or to push.
    All runs of a registry add to the same counters. One object may watch several runs, also at once."""

    def __init__(
        self,
        port: int | None = None,
        host: str = "127.0.0.1",
        registry: "CollectorRegistry | None" = None,
        labels: Mapping[str, str] = _NO_LABELS,
    ) -> None:
        """`port`: taken at once; 0 for any that is free. `labels`: of all metrics, such as the name of the job. Raises
        SpecError."""
        try:
            from prometheus_client import REGISTRY

            from .exposition import Page
            from .families import families_of
        except ImportError as error:
            raise SpecError("Metrics need prometheus-client: pip install 'batch-agent[metrics]'.") from error
        chosen = REGISTRY if registry is None else registry
        self._families = families_of(chosen, tuple(labels))
        self._values = tuple(map(str, labels.values()))
        self._page = None if port is None else Page(port, host, chosen)
        self._runs: dict[int, _Run] = {}  # by the thread that tells of it, of which each run has its own
        self._lock = threading.Lock()

    @property
    def url(self) -> str | None:
        """Where they are served; None without a port."""
        return None if self._page is None else self._page.url

    def take(self, at: float, event: Event) -> None:
        run = self._runs.get(threading.get_ident()) or self._begun()
        run.take(event)

    def flush(self) -> None:
        run = self._runs.get(threading.get_ident())
        if run is not None:
            run.write()

    def close(self) -> None:
        """Counters stay as they are; gauges are left without this run's part of them. After the last run the port is
        free again."""
        with self._lock:
            run = self._runs.pop(threading.get_ident(), None)
            if run is not None:
                run.write()
                run.leave()
            if self._page is not None and not self._runs:
                self._page.close()

    def _begun(self) -> "_Run":
        with self._lock:
            run = self._runs[threading.get_ident()] = _Run(self._families, self._values)
            if self._page is not None:
                self._page.open()
        return run


class _Run:
    """One run; in a flow, all of its stages."""

    def __init__(self, families: "Families", constant: tuple[str, ...]) -> None:
        """`constant`: the values of the labels that all metrics have."""
        self._families = families
        self._constant = constant
        self._parts = ResidentShares()
        self._stages: dict[str, StageMetrics] = {}
        self._came: Counter[str] = Counter()
        self._fullness = CapacityTotals()
        self._paused: set[str] = set()
        """Workers."""

    def take(self, event: Event) -> None:
        name = worker = ""
        if isinstance(event, StageEvent):
            name, event = event.stage, event.event
        if isinstance(event, WorkerEvent):
            worker, event = event.worker, event.event
        self._in_stage(name, worker, event)

    def write(self) -> None:
        for stage in self._stages.values():
            stage.write()

    def leave(self) -> None:
        self._parts.leave()

    def _in_stage(self, name: str, worker: str, event: Event) -> None:
        match event:
            case TurnStarted():
                self._stages[name].agents.does(event.key, "generating")
            case TurnEnded():
                self._stages[name].turned(event)
            case CallsStarted():
                self._stages[name].agents.does(event.key, "in tools")
            case CallsEnded():
                self._stages[name].called(event)
            case AgentStarted():
                self._stages[name].started(event.key)
            case AgentReassigned():
                self._stages[name].moved(event.key)
            case AgentFinished():
                self._stages[name].finished(event.result, is_resumed=event.resumed)
            case RequestRetried():
                self._stages[name].retried(event)
            case RunStarted():
                labels = (*self._constant, name, event.backend, event.model)
                self._stages[name] = StageMetrics(self._families, self._parts, labels, event)
                self._stages[name].expects(max(event.total or 0, self._came[name]))
            case ItemQueued():
                self._came[name] += 1
                if name in self._stages:
                    self._stages[name].expects(self._came[name])
            case LoadSampled():
                self._sampled(self._fullness.together(worker, event))
            case Paused() | Resumed():
                (self._paused.add if isinstance(event, Paused) else self._paused.discard)(worker)
                self._parts.set(self._families.paused, self._constant, bool(self._paused))
            case ToolsUsed():
                self._summarized(event.summaries)
            case _:
                pass

    def _sampled(self, sample: LoadSampled) -> None:
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
                self._parts.set(gauge, labels, value)
        if sample.kv_usage is not None:
            self._parts.replace(families.kv_usage, labels, sample.kv_usage)

    def _summarized(self, usage: Usage) -> None:
        """Summaries belong to no agent; in a flow, to no stage either."""
        if "" in self._stages:
            self._stages[""].spent(usage)
            return
        for kind, count in (("input", usage.input), ("cached", usage.cached), ("output", usage.output)):
            self._families.tokens.labels(*self._constant, "", "", "", kind).inc(count)
