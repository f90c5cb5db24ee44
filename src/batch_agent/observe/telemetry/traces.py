"""OpenTelemetry traces of a run, by the semantic conventions for generative AI. Created in a background thread, so that
the run does not wait."""

import threading
from typing import TYPE_CHECKING

from ...core.errors import SpecError
from ...core.events import Event
from ...version import __version__

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import TracerProvider

    from .spans import RunSpans


class Traces:
    """`BatchAgent.run(..., events=[Traces()])`: a span for the run, with child spans for stages, agents, turns and
    calls.

    The run's span is a child of the span that is current where this object is created. Spans go to
    `tracer_provider`, or to the global one. One object can be used for several runs, also concurrently."""

    def __init__(self, tracer_provider: "TracerProvider | None" = None, name: str = "") -> None:
        """`name`: added to the span names, such as "triage". Raises SpecError."""
        try:
            from opentelemetry import context, trace
        except ImportError as error:
            raise SpecError("Traces need opentelemetry-api: pip install 'batch-agent[otel]'.") from error
        self._name = name
        self._tracer = trace.get_tracer("batch_agent", __version__, tracer_provider)
        self._creation_context = context.get_current()
        self._runs: dict[int, RunSpans] = {}  # by thread: each run has its own

    def take(self, at: float, event: Event) -> None:
        run = self._runs.get(threading.get_ident()) or self._start_run(at)
        run.take(at, event)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        """Ends the run of this thread, with all open spans."""
        run = self._runs.pop(threading.get_ident(), None)
        if run is not None:
            run.end()

    def _start_run(self, at: float) -> "RunSpans":
        from .spans import RunSpans

        run = self._runs[threading.get_ident()] = RunSpans(self._tracer, self._parent(), self._name, at)
        return run

    def _parent(self) -> "Context":
        """The context of the run, if it has a current span; else the one in which this object was created."""
        from opentelemetry import context, trace

        return context.get_current() if trace.get_current_span().get_span_context().is_valid else self._creation_context
