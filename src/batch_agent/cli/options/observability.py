"""Command-line options for watching a run: metrics, traces and the dashboard."""

import os
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ...core.errors import SpecError
from ...core.events import Event
from ...core.protocols.event_sink import SlowSink
from ...core.requests import Exchange
from ...observe.telemetry.metrics import Metrics
from ...observe.telemetry.traces import Traces
from .help_groups import OUTPUT

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

_SERVICE = "batch-agent"
_MISSING = (
    "--traces sends OpenTelemetry spans, which needs the SDK and an exporter: pip install 'batch-agent[otel]' "
    "opentelemetry-sdk opentelemetry-exporter-otlp-proto-{0}"
)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryOptions:
    """Options for Prometheus metrics and OpenTelemetry traces, both off by default."""

    metrics_port: Annotated[
        int | None,
        Parameter(help="Serve Prometheus metrics on this port of 127.0.0.1 during the run.", group=OUTPUT),
    ] = None
    traces: Annotated[
        bool,
        Parameter(
            help="Send OpenTelemetry spans to the endpoint set in the OTEL_... environment variables.", group=OUTPUT
        ),
    ] = False
    traces_content: Annotated[
        bool,
        Parameter(help="As --traces, with prompts, answers, tool arguments and results in the spans.", group=OUTPUT),
    ] = False

    def sinks(self) -> list[SlowSink]:
        """Event sinks for these options. Opens the metrics port. Raises SpecError."""
        return telemetry_sinks(self.metrics_port, self.traces, content=self.traces_content)


def telemetry_sinks(metrics_port: int | None, traces: bool, *, content: bool = False) -> list[SlowSink]:
    """Sinks for `BatchAgent.stream(events=...)`. `content`: whether traces include contents. Raises SpecError for a
    missing package or a port in use."""
    sinks: list[SlowSink] = []
    if metrics_port is not None:
        sinks.append(Metrics(metrics_port))
    if traces or content:
        sinks.append(_traces(content=content))
    return sinks


def _traces(*, content: bool) -> SlowSink:
    """Traces to the endpoint in the standard environment variables (OTEL_EXPORTER_OTLP_ENDPOINT and so on), or to the
    tracer provider that a wrapper such as `opentelemetry-instrument` has already set up."""
    try:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.trace import get_tracer_provider
    except ImportError as error:
        raise SpecError(_MISSING.format("http")) from error
    if isinstance(get_tracer_provider(), TracerProvider):
        return Traces(content=content)
    return _ExportedTraces(content=content)


class _ExportedTraces:
    """Traces with their own tracer provider, which is flushed when the sink is closed."""

    def __init__(self, *, content: bool) -> None:
        self._provider = _provider(_exporter())
        self._traces = Traces(self._provider, content=content)

    def take(self, at: float, event: Event) -> None:
        self._traces.take(at, event)

    @property
    def wants_exchanges(self) -> bool:
        return self._traces.wants_exchanges

    def take_exchange(self, exchange: Exchange) -> None:
        self._traces.take_exchange(exchange)

    def flush(self) -> None:
        self._traces.flush()

    def close(self) -> None:
        self._traces.close()
        self._provider.shutdown()


def _provider(exporter: "SpanExporter") -> "TracerProvider":
    from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({SERVICE_NAME: _SERVICE}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _exporter() -> "SpanExporter":
    configured = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol = "grpc" if configured == "grpc" else "http"
    try:
        module = import_module(f"opentelemetry.exporter.otlp.proto.{protocol}.trace_exporter")
    except ImportError as error:
        raise SpecError(_MISSING.format(protocol)) from error
    exporter: SpanExporter = module.OTLPSpanExporter()
    return exporter


Dashboard = Annotated[
    bool | None,
    Parameter(
        negative="--no-dashboard",
        help="Show the live dashboard, or print an occasional plain line. By default, this depends on the terminal.",
    ),
]
