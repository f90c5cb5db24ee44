"""A run as it goes, in a terminal: one live line there, a plain line now and then elsewhere."""

import sys
import time
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..core.events import Event, Notice, RunStarted, Shared
from .sharing import prefix_lines
from .tally import Tally

_SECONDS_BETWEEN_LINES = 5.0


class Progress(Protocol):
    """An event sink that shows what it sees while it is open."""

    tally: Tally

    def emit(self, event: Event) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def progress_for(stream: TextIO) -> Progress:
    """The live view for a terminal, plain lines for everything else."""
    console = Console(file=stream)
    return LiveProgress(console) if console.is_terminal else PlainProgress(stream)


class LiveProgress:
    """Redrawn eight times a second by a thread of its own; an event only changes a number."""

    def __init__(self, console: Console) -> None:
        self.tally = Tally()
        self._since = time.monotonic()
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=8, transient=True)

    def emit(self, event: Event) -> None:
        self.tally.emit(event)
        for line in _before(event):
            self._live.console.print(line, style="dim", highlight=False, markup=False)

    def __enter__(self) -> Self:
        self._since = time.monotonic()
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def _render(self) -> Table:
        tally = self.tally
        grid = Table.grid(padding=(0, 1))
        if not tally.model:
            grid.add_row(Text(tally.notice or "Connecting ...", style="cyan"))
            return grid
        bar = ProgressBar(total=tally.total or None, completed=tally.done, width=30, pulse=tally.total is None)
        failed = Text(f"{tally.failed} failed", style="red" if tally.failed else "dim")
        grid.add_row(bar, *_numbers(tally, time.monotonic() - self._since), failed)
        return grid


class PlainProgress:
    """For logs and pipes: notices, then a line every few seconds while something happens."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self.tally = Tally()
        self._stream = stream
        self._since = self._shown = time.monotonic()

    def emit(self, event: Event) -> None:
        self.tally.emit(event)
        for line in _before(event):
            print(line, file=self._stream, flush=True)
        if isinstance(event, Notice):
            print(event.text, file=self._stream, flush=True)
        elif isinstance(event, RunStarted) and event.seen:
            print(f"{event.model} on {', '.join(event.seen)}", file=self._stream, flush=True)
        elif self.tally.model and time.monotonic() - self._shown >= _SECONDS_BETWEEN_LINES:
            self._shown = time.monotonic()
            numbers = _numbers(self.tally, self._shown - self._since)
            print(", ".join([*numbers, f"{self.tally.failed} failed"]), file=self._stream, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def _before(event: Event) -> list[str]:
    """What is said once, before the first agent."""
    return prefix_lines(event.prefix) if isinstance(event, Shared) and event.prefix.measured is None else []


def _numbers(tally: Tally, seconds: float) -> list[str]:
    of = f" of {tally.total}" if tally.total is not None else ""
    fresh = tally.done - tally.resumed
    rate = fresh / seconds if seconds > 0 else 0.0
    parts = [f"{tally.done}{of} done", f"{max(0, tally.running)} running", f"{_per_time(rate)}"]
    if tally.total is not None and rate > 0:
        parts.append(f"{duration((tally.total - tally.done) / rate)} left")
    if tally.retries:
        parts.append(f"{tally.retries} retries")
    if tally.paused:
        parts.append(f"waiting: {tally.paused[:80]}")
    return parts


def _per_time(rate: float) -> str:
    return f"{rate:.1f}/s" if rate >= 1 or rate == 0 else f"{rate * 60:.1f}/min"


def duration(seconds: float) -> str:
    """Seconds as people read them: 42 s, 3 min 05 s, 2 h 07 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
