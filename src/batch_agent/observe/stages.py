"""A flow as it goes, in a terminal: a line for each stage."""

import sys
import time
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..core.events import Event, FlowStarted, InStage, Notice, Paused, Queued, Resumed
from .progress import duration
from .tally import Tally

_SECONDS_BETWEEN_LINES = 5.0


class FlowTally:
    """The numbers of each stage, folded from its events."""

    def __init__(self) -> None:
        self.stages: dict[str, Tally] = {}
        self.came: dict[str, int] = {}
        """Items that a stage was given so far."""
        self.notice = ""
        self.paused = ""

    def emit(self, event: Event) -> None:
        match event:
            case FlowStarted(stages):
                self.stages = {stage: Tally() for stage in stages}
                self.came = dict.fromkeys(stages, 0)
            case InStage(stage, Queued()):
                self.came[stage] += 1
            case InStage(stage, Notice(text)):
                self.notice = text
            case InStage(stage, inner):
                self.stages[stage].emit(inner)
            case Notice(text):
                self.notice = text
            case Paused():
                self.paused = event.reason
            case Resumed():
                self.paused = ""
            case _:
                pass

    @property
    def has_begun(self) -> bool:
        return any(tally.model for tally in self.stages.values())

    def of(self, stage: str) -> int | None:
        """How many items a stage has to do, as far as anybody knows."""
        return self.came[stage] or self.stages[stage].total


def flow_progress_for(stream: TextIO) -> "LiveStages | PlainStages":
    console = Console(file=stream)
    return LiveStages(console) if console.is_terminal else PlainStages(stream)


class LiveStages:
    """Redrawn eight times a second by a thread of its own; an event only changes a number."""

    def __init__(self, console: Console) -> None:
        self.tally = FlowTally()
        self._since = time.monotonic()
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=8, transient=True)

    def emit(self, event: Event) -> None:
        self.tally.emit(event)

    def __enter__(self) -> Self:
        self._since = time.monotonic()
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def _render(self) -> Table:
        tally, grid = self.tally, Table.grid(padding=(0, 1))
        if not tally.has_begun:
            grid.add_row(Text(tally.notice or "Connecting ...", style="cyan"))
            return grid
        for name, stage in tally.stages.items():
            of = tally.of(name)
            bar = ProgressBar(total=of or None, completed=stage.done, width=24, pulse=of is None)
            failed = Text(f"{stage.failed} failed", style="red" if stage.failed else "dim")
            grid.add_row(Text(name, style="bold"), bar, *stage_numbers(stage, of), failed)
        seconds = duration(time.monotonic() - self._since)
        grid.add_row(Text(f"waiting: {tally.paused[:60]}" if tally.paused else seconds, style="dim"))
        return grid


class PlainStages:
    """For logs and pipes: a line every few seconds while something happens."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self.tally = FlowTally()
        self._stream = stream
        self._shown = time.monotonic()

    def emit(self, event: Event) -> None:
        self.tally.emit(event)
        told = event.event if isinstance(event, InStage) else event
        if isinstance(told, Notice):
            print(told.text, file=self._stream, flush=True)
        elif self.tally.has_begun and time.monotonic() - self._shown >= _SECONDS_BETWEEN_LINES:
            self._shown = time.monotonic()
            print(self._line(), file=self._stream, flush=True)

    def _line(self) -> str:
        tally = self.tally
        return "; ".join(
            f"{name}: {', '.join(stage_numbers(stage, tally.of(name)))}" for name, stage in tally.stages.items()
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def stage_numbers(tally: Tally, of: int | None) -> list[str]:
    """What is done of how many, and what is under way."""
    so_far = f"{tally.done} of {of} done" if of is not None else f"{tally.done} done"
    return [so_far, f"{max(0, tally.running)} running", f"{tally.usage.input + tally.usage.output:,} tokens"]
