"""Progress of a run: a dashboard in a terminal or a notebook, plain lines elsewhere."""

import os
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console

from ...core.events import EndpointChanged, Event, Notice, RunStarted, StageEvent, Steered, WorkerEvent
from ...core.safe_text import safe_text
from ..sanitize import sanitize
from ..text.run_outputs import RunOutputs
from ..text.text_format import duration, per_time, prefix_worker
from .notebook import NotebookProgress, is_notebook
from .state import LiveStage, LiveState
from .terminal import LiveProgress
from .view_rows import stage_prefix

_LINE_INTERVAL = 5.0
_MAX_PROBLEM = 120
"""Characters of the reason why nothing is sent or answered."""


class Progress(Protocol):
    """An event sink that shows the run while it is open."""

    @property
    def state(self) -> LiveState: ...

    def emit(self, event: Event) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def progress_for(stream: TextIO, dashboard: bool | None = None, outputs: RunOutputs | None = None) -> Progress:
    """A dashboard if `stream` can show it, plain lines otherwise. `dashboard`: True for a dashboard even if `stream` is
    not known to be a terminal, False for plain lines in any case. `outputs`: shown at the end, with the summary of the
    run; None: the caller prints a summary."""
    if dashboard is False:
        return PlainProgress(stream, outputs)
    if is_notebook():
        return NotebookProgress(outputs)
    console = Console(file=stream, force_terminal=dashboard, force_jupyter=False)
    return LiveProgress(console, outputs) if dashboard or _can_show(console) else PlainProgress(stream, outputs)


class PlainProgress:
    """Plain lines for logs and pipes: notices, and counts every few seconds if they have changed."""

    def __init__(self, stream: TextIO = sys.stderr, outputs: RunOutputs | None = None) -> None:
        self.state = LiveState()
        self._stream = stream
        self._outputs = outputs
        self._started = self._printed_at = time.monotonic()
        self._last_counts = ""

    def emit(self, event: Event) -> None:
        self.state.emit(event)
        for line in self._lines(event):
            print(safe_text(line), file=self._stream, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._outputs is not None:
            self._outputs.print_end(self._stream, self.state, time.monotonic() - self._started, error)

    def _lines(self, event: Event) -> Iterator[str]:
        yield from stage_prefix(event)
        inner = event.event if isinstance(event, StageEvent | WorkerEvent) else event
        if isinstance(inner, Steered):
            yield f"Steered: {inner}"
        elif isinstance(inner, EndpointChanged):
            yield prefix_worker(event.worker if isinstance(event, WorkerEvent) else "", str(inner))
        elif isinstance(inner, Notice):
            yield prefix_worker(event.worker if isinstance(event, WorkerEvent) else "", inner.text)
        elif isinstance(event, RunStarted) and event.seen:
            yield f"{event.model} on {', '.join(event.seen)}"
        elif self.state.has_started and time.monotonic() - self._printed_at >= _LINE_INTERVAL:
            self._printed_at = time.monotonic()
            self.state.tick(self._printed_at - self._started)
            changed = counts(self.state)
            if changed != self._last_counts:
                self._last_counts = changed
                yield f"{changed}{speed(self.state)}"


def counts(state: LiveState) -> str:
    """Counts of all stages, in one line."""
    stages = [f"{name}: {_stage(stage)}" if name else _stage(stage) for name, stage in state.stages.items()]
    waits = [f"waiting: {sanitize(state.paused, _MAX_PROBLEM)}"] if state.paused else []
    if state.first_problem and not state.paused:
        waits.append(f"no answer yet: {sanitize(state.first_problem, _MAX_PROBLEM)}")
    return "; ".join([*stages, *waits])


def speed(state: LiveState) -> str:
    rate = sum(stage.throughput.rate for stage in state.stages.values())
    left = "" if state.seconds_left is None else f", {duration(state.seconds_left)} left"
    return f"; {per_time(rate)}{left}"


def _stage(stage: LiveStage) -> str:
    stats = stage.stats
    parts = [f"{stats.done:,} done" if stage.total is None else f"{stats.done:,} of {stage.total:,} done"]
    parts.append(f"{len(stage.agents):,} running")
    if stats.failed:
        parts.append(f"{stats.failed:,} failed")
    if stats.retries:
        kinds = ", ".join(kind for kind, _ in stats.retries.most_common())
        retries = stats.retries.total()
        parts.append(f"{retries:,} {'retry' if retries == 1 else 'retries'} ({kinds})")
    return ", ".join(parts)


def _can_show(console: Console) -> bool:
    """Whether a dashboard can be drawn on this terminal. Always false in CI."""
    is_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
    is_utf8 = console.encoding.startswith("utf")
    return console.is_terminal and not console.is_dumb_terminal and not console.legacy_windows and is_utf8 and not is_ci
