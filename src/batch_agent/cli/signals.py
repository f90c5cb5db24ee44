"""SIGINT and SIGTERM of a command: the first cancels it, so that it ends in good order; the next ends the process.

How a run that was started from the command line ends.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Self, TypeVar

from ..aio import run_event_loop
from ..core.fast_dataclass import dataclass
from ..core.run_failure import RunStopped
from ..core.safe_text import safe_text

T = TypeVar("T")
_STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143}
_ONE_WISH = 0.2
"""Seconds in which several signals are one: wrappers and supervisors send them together, or twice."""
_SHOW_CURSOR = b"\x1b[?25h\n"


class Interrupted(Exception):
    """A signal stopped the command, which has ended in good order."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.by_sigterm = number is signal.SIGTERM
        self.status = _STATUS[number]


def interruptible(work: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`. Raises Interrupted where a signal has cancelled the work."""
    with _Signals() as signals:
        try:
            return run_event_loop(_until_told(work, signals))
        except asyncio.CancelledError:
            if signals.told is None:
                raise
            raise Interrupted(signals.told) from None


def end_at_once_by_signals() -> None:
    """From now on a signal ends the process as it stands: nothing is left to be put in order, and Python, which is
    about to end, would show where it was."""
    for number in _STATUS:
        signal.signal(number, signal.SIG_DFL)


async def _until_told(work: Coroutine[Any, Any, T], signals: "_Signals") -> T:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    signals.on_first(lambda: loop.call_soon_threadsafe(task.cancel))
    return await work


class _Signals:
    """Handlers, for as long as the block runs. No KeyboardInterrupt is raised in it, at whatever line Python is."""

    def __init__(self) -> None:
        self.told: signal.Signals | None = None
        """The signal that counts: SIGTERM, if it was among those of the first moment."""
        self._at = 0.0
        self._cancel: Callable[[], object] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def on_first(self, cancel: Callable[[], object]) -> None:
        self._cancel = cancel
        if self.told is not None:
            cancel()

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._handle) for number in _STATUS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _handle(self, number: int, _: FrameType | None) -> None:
        given, now = signal.Signals(number), time.monotonic()
        if self.told is None:
            self.told, self._at = given, now
            if self._cancel is not None:
                self._cancel()
        elif now - self._at > _ONE_WISH:
            _die_of(given)
        elif given is signal.SIGTERM:
            self.told = given


def _die_of(number: signal.Signals) -> NoReturn:
    """As if nobody had handled it."""
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), _SHOW_CURSOR)  # the dashboard hides it
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(_STATUS[number])


@dataclass(frozen=True, slots=True)
class StoppedBySignal:
    """Before its end."""

    status: int
    why: str


def run_until_signal(work: Coroutine[Any, Any, T]) -> T | StoppedBySignal:
    """What it gives, unless somebody or something stops it. Other errors are raised."""
    try:
        return interruptible(work)
    except Interrupted as error:
        return StoppedBySignal(error.status, "Stopped by SIGTERM." if error.by_sigterm else "StoppedBySignal.")
    except RunStopped as error:
        return StoppedBySignal(2, f"Stopped. {error}")


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(safe_text(line), file=sys.stderr)


def exit_status(stopped: StoppedBySignal | None, folder: Path, *, any_failed: bool) -> int:
    """After saying how to go on."""
    if stopped is not None:
        print_lines(
            [stopped.why, f"What is done is kept: run the same command again to go on, or batch-agent resume {folder}"]
        )
        return stopped.status
    if any_failed:
        print_lines(["Run the same command again to try the failed ones once more."])
    return 1 if any_failed else 0
