"""Handling of SIGINT and SIGTERM by commands. The first signal cancels the command, which then shuts down in order; the
next one ends the process. Also has the exit status of a run."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterable
from types import FrameType
from typing import Any, NoReturn, Self, TypeVar

from ..aio import run_event_loop
from ..core.fast_dataclass import dataclass
from ..core.run_failure import RunStopped
from ..core.safe_text import safe_text
from ..observe.live.state import LiveState
from ..observe.text.run_outputs import RunOutputs, agents_done

T = TypeVar("T")
_STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143}
_SAME_SIGNAL_SECONDS = 0.2
"""Signals within this time count as one, because wrappers and supervisors may send several together or one twice."""
_SHOW_CURSOR = b"\x1b[?25h\n"


class Interrupted(Exception):
    """Raised if a signal stopped the command, after an orderly shutdown."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.by_sigterm = number is signal.SIGTERM
        self.status = _STATUS[number]


def interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`. Raises Interrupted if a signal cancelled the work."""
    with _Signals() as signals:
        try:
            return run_event_loop(_cancel_on_signal(work, signals))
        except asyncio.CancelledError:
            if signals.received is None:
                raise
            raise Interrupted(signals.received) from None


def end_at_once_by_signals() -> None:
    """Restores the default handlers, so that a signal ends the process at once: nothing is left to clean up, and Python
    would print a traceback while it exits."""
    for number in _STATUS:
        signal.signal(number, signal.SIG_DFL)


async def _cancel_on_signal(work: Coroutine[Any, Any, T], signals: "_Signals") -> T:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    signals.on_first(lambda: loop.call_soon_threadsafe(task.cancel))
    return await work


class _Signals:
    """Signal handlers for the duration of a `with` block. No KeyboardInterrupt is raised inside it."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        """The first signal, or SIGTERM if it was among the signals that count as the first."""
        self._at = 0.0
        self._cancel: Callable[[], object] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def on_first(self, cancel: Callable[[], object]) -> None:
        self._cancel = cancel
        if self.received is not None:
            cancel()

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._handle) for number in _STATUS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _handle(self, number: int, _: FrameType | None) -> None:
        current, now = signal.Signals(number), time.monotonic()
        if self.received is None:
            self.received, self._at = current, now
            if self._cancel is not None:
                self._cancel()
        elif now - self._at > _SAME_SIGNAL_SECONDS:
            _kill_self(current)
        elif current is signal.SIGTERM:
            self.received = current


def _kill_self(number: signal.Signals) -> NoReturn:
    """Ends the process in the same way as the default handler of the signal."""
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), _SHOW_CURSOR)  # the dashboard hides it
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(_STATUS[number])


@dataclass(frozen=True, slots=True)
class StoppedBySignal:
    """A command that was stopped early, by a signal or by a limit of the run."""

    status: int
    message: str


def run_until_signal(work: Coroutine[Any, Any, T]) -> T | StoppedBySignal:
    """Returns the result of the work, or StoppedBySignal. Raises other errors."""
    try:
        return interruptible(work)
    except Interrupted as error:
        return StoppedBySignal(error.status, "Stopped by SIGTERM." if error.by_sigterm else "Stopped.")
    except RunStopped as error:
        return StoppedBySignal(2, f"Stopped. {error}")


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(safe_text(line), file=sys.stderr)


def exit_status(stopped: StoppedBySignal | None, outputs: RunOutputs, state: LiveState, *, any_failed: bool) -> int:
    """Returns the exit status of a run. For a stopped run, prints what is kept of it and how to resume it."""
    if stopped is not None:
        print_lines([outputs.stop_line(agents_done(state), stopped.message)])
        return stopped.status
    if any_failed:
        print_lines(["To retry the failed agents, run the same command again."])
    return 1 if any_failed else 0
