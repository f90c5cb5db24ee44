"""Who shows a run as it goes: a dashboard in a terminal or a notebook, a plain line now and then elsewhere."""

import os
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console

from ...core.events import Event, Notice, RunStarted, StageEvent, WorkerEvent
from ...core.safe_text import safe_text
from ..text.formatting import duration, per_time, prefix_worker
from .detection import is_notebook
from .notebook import NotebookProgress
from .state import LiveStage, LiveState
from .terminal import LiveProgress
from .view_rows import stage_prefix

_SECONDS_BETWEEN_LINES = 5.0


class Progress(Protocol):
    """An event sink that shows what it sees while it is open."""

    @property
    def board(self) -> LiveState: ...

    def emit(self, event: Event) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def progress_for(stream: TextIO, wanted: bool | None = None) -> Progress:
    """The dashboard, where somebody can see it; plain lines elsewhere. `wanted`: True for a dashboard even where
    `stream` is not known to be a terminal, False for plain lines in any case."""
    if wanted is False:
        return PlainProgress(stream)
    if is_notebook():
        return NotebookProgress()
    console = Console(file=stream, force_terminal=wanted, force_jupyter=False)
    return LiveProgress(console) if wanted or _can_show(console) else PlainProgress(stream)


class PlainProgress:
    """For logs and pipes: notices, then a line every few seconds while something changes."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self.board = LiveState()
        self._stream = stream
        self._since = self._looked = time.monotonic()
        self._said = ""

    def emit(self, event: Event) -> None:
        self.board.emit(event)
        for line in self._worth_saying(event):
            print(safe_text(line), file=self._stream, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def _worth_saying(self, event: Event) -> Iterator[str]:
        yield from stage_prefix(event)
        told = event.event if isinstance(event, StageEvent | WorkerEvent) else event
        if isinstance(told, Notice):
            yield prefix_worker(event.worker if isinstance(event, WorkerEvent) else "", told.text)
        elif isinstance(event, RunStarted) and event.seen:
            yield f"{event.model} on {', '.join(event.seen)}"
        elif self.board.has_begun and time.monotonic() - self._looked >= _SECONDS_BETWEEN_LINES:
            self._looked = time.monotonic()
            self.board.tick(self._looked - self._since)
            changed = counts(self.board)
            if changed != self._said:
                self._said = changed
                yield f"{changed}{speed(self.board)}"


def counts(board: LiveState) -> str:
    """How far it is."""
    stages = [f"{name}: {_stage(stage)}" if name else _stage(stage) for name, stage in board.stages.items()]
    waits = [f"waiting: {board.paused[:80]}"] if board.paused else []
    return "; ".join([*stages, *waits])


def speed(board: LiveState) -> str:
    rate = sum(stage.pace.rate for stage in board.stages.values())
    left = "" if board.seconds_left is None else f", {duration(board.seconds_left)} left"
    return f"; {per_time(rate)}{left}"


def _stage(stage: LiveStage) -> str:
    tally = stage.tally
    parts = [f"{tally.done:,} done" if stage.of is None else f"{tally.done:,} of {stage.of:,} done"]
    parts.append(f"{len(stage.agents):,} running")
    if tally.failed:
        parts.append(f"{tally.failed:,} failed")
    if tally.retries:
        parts.append(f"{tally.retries.total():,} retries")
    return ", ".join(parts)


def _can_show(console: Console) -> bool:
    """Whether a frame can be drawn there, and somebody looks."""
    is_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
    is_utf8 = console.encoding.startswith("utf")
    return console.is_terminal and not console.is_dumb_terminal and not console.legacy_windows and is_utf8 and not is_ci
