"""The life of a run as OpenTelemetry spans, by the conventions for generative AI. Made in a thread of its own, of what
is over; the run waits for nothing here."""

import threading
from importlib.metadata import version
from typing import TYPE_CHECKING

from ...core.errors import SpecError
from ...core.events import Event

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import TracerProvider

    from .spans import RunSpans


class Traces:
    """`BatchAgent.run(..., events=[Traces()])`: a span for the run, and in it one for each stage, agent, turn and call.

    The run's span is a child of the one that is current where this is made. What becomes of the spans is up to the SDK,
    which is yours: that of `tracer_provider`, or the global one. One object may watch several runs, also at once."""

    def __init__(self, tracer_provider: "TracerProvider | None" = None, name: str = "") -> None:
        """`name`: what this run is for, such as "triage"; it becomes a part of the names of its spans. Raises
        SpecError."""
        try:
            from opentelemetry import context, trace
        except ImportError as error:
            raise SpecError("Traces need opentelemetry-api: pip install 'batch-agent[otel]'.") from error
        self._name = name
        self._tracer = trace.get_tracer("batch_agent", version("batch-agent"), tracer_provider)
        self._made_in = context.get_current()
        self._runs: dict[int, RunSpans] = {}  # by the thread that tells of it, of which each run has its own

    def take(self, at: float, event: Event) -> None:
        run = self._runs.get(threading.get_ident()) or self._begun(at)
        run.take(at, event)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        """Spans that are still open end here."""
        run = self._runs.pop(threading.get_ident(), None)
        if run is not None:
            run.end()

    def _begun(self, at: float) -> "RunSpans":
        from .spans import RunSpans

        run = self._runs[threading.get_ident()] = RunSpans(self._tracer, self._parent(), self._name, at)
        return run

    def _parent(self) -> "Context":
        """What is current where the run is, if anything is; else, where this was made."""
        from opentelemetry import context, trace

        return context.get_current() if trace.get_current_span().get_span_context().is_valid else self._made_in
