"""OpenTelemetry traces of a run, by the semantic conventions for generative AI. Created in a background thread, so that
the run does not wait."""

import threading
from typing import TYPE_CHECKING

from ...core.errors import SpecError
from ...core.events import Event
from ...core.requests import Exchange
from ...core.validation import at_least
from ...lazy_imports import lazy_modules
from ...version import __version__

with lazy_modules(globals()):
    from . import message_content, spans

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import TracerProvider

    from .message_content import RunContents
    from .spans import RunSpans


class Traces:
    """`BatchAgent.run(..., events=[Traces()])`: a span for the run, with child spans for stages, agents, turns and
    calls.

    The run's span is a child of the span that is current when this object is created. Spans go to `tracer_provider`, or
    to the global one. One object can be used for several runs, also concurrently."""

    def __init__(
        self,
        tracer_provider: "TracerProvider | None" = None,
        name: str = "",
        *,
        content: bool = False,
        content_chars: int = 16_000,
    ) -> None:
        """`name`: added to the span names, such as "triage". `content`: whether to export prompts, answers, tool
        arguments and results, without the secrets that are sent to the server. `content_chars`: maximum characters in
        one attribute; the longest texts are cut to fit. Raises SpecError."""
        try:
            from opentelemetry import context, trace
        except ImportError as error:
            raise SpecError("Traces need opentelemetry-api: pip install 'batch-agent[otel]'.") from error
        at_least("content_chars", content_chars, 1)
        self._name = name
        self._content_chars = content_chars if content else None
        self._tracer = trace.get_tracer("batch_agent", __version__, tracer_provider)
        self._creation_context = context.get_current()
        self._runs: dict[int, RunSpans] = {}  # by thread: each run has its own
        self._contents: dict[int, RunContents] = {}

    def take(self, at: float, event: Event) -> None:
        run = self._runs.get(threading.get_ident()) or self._start_run(at)
        run.take(at, event)

    @property
    def wants_exchanges(self) -> bool:
        return self._content_chars is not None

    def take_exchange(self, exchange: Exchange) -> None:
        contents = self._contents_of_run()
        if contents is not None:
            contents.add(exchange)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        """Ends the run of this thread, with all open spans."""
        self._contents.pop(threading.get_ident(), None)
        run = self._runs.pop(threading.get_ident(), None)
        if run is not None:
            run.end()

    def _start_run(self, at: float) -> "RunSpans":
        run = self._runs[threading.get_ident()] = spans.RunSpans(
            self._tracer, self._parent(), self._name, at, self._contents_of_run()
        )
        return run

    def _contents_of_run(self) -> "RunContents | None":
        """Contents of the run of this thread. Its first exchange comes before its first event."""
        if self._content_chars is None:
            return None
        return self._contents.setdefault(threading.get_ident(), message_content.RunContents(self._content_chars))

    def _parent(self) -> "Context":
        """The current span's context, if the run has one; otherwise the context in which this object was created."""
        from opentelemetry import context, trace

        return context.get_current() if trace.get_current_span().get_span_context().is_valid else self._creation_context
