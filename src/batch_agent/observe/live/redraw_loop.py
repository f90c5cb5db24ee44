"""A board that a run fills, and that is looked at now and then by a thread of its own."""

import contextvars
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from ...core.events import Event
from .state import LiveState

T = TypeVar("T")


class RedrawLoop(Generic[T]):
    """An event only changes a number. `look` makes of the board what `show` then takes its time to show."""

    def __init__(self, look: Callable[[LiveState, float], T], show: Callable[[T], None], times_a_second: float) -> None:
        """`look` is given the seconds since the start."""
        self.board = LiveState()
        self._look = look
        self._show = show
        self._interval = 1 / times_a_second
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._since = time.monotonic()
        self._thread: threading.Thread | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._since

    def emit(self, event: Event) -> None:
        with self._lock:
            self.board.emit(event)

    def start(self) -> None:
        self._since = time.monotonic()
        self._over.clear()
        context = contextvars.copy_context()  # a notebook knows by it which cell the output is for
        self._thread = threading.Thread(target=context.run, args=(self._work,), name="batch-agent-view", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns when nothing more will be shown."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def redraw(self) -> None:
        with self._lock:
            seconds = self.seconds
            self.board.tick(seconds)
            seen = self._look(self.board, seconds)
        self._show(seen)

    def _work(self) -> None:
        while True:
            self.redraw()
            if self._over.wait(self._interval):
                return
