"""Thread that redraws the state of a run at a fixed rate."""

import contextvars
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from ...core.events import Event
from .state import LiveState

T = TypeVar("T")


class RedrawLoop(Generic[T]):
    """Events only update the state. `render` turns the state into a frame under a lock; `show` displays the frame
    outside the lock."""

    def __init__(
        self, render: Callable[[LiveState, float], T], show: Callable[[T], None], updates_per_second: float
    ) -> None:
        """`render` gets the state and the seconds since the start."""
        self.state = LiveState()
        self._render = render
        self._show = show
        self._interval = 1 / updates_per_second
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._started = time.monotonic()
        self._thread: threading.Thread | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def emit(self, event: Event) -> None:
        with self._lock:
            self.state.emit(event)

    def start(self) -> None:
        self._started = time.monotonic()
        self._stopped.clear()
        context = contextvars.copy_context()  # by which a notebook finds the cell of the output
        self._thread = threading.Thread(target=context.run, args=(self._work,), name="batch-agent-view", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread and waits for it. Nothing is shown after that."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def redraw(self) -> None:
        with self._lock:
            seconds = self.seconds
            self.state.tick(seconds)
            frame = self._render(self.state, seconds)
        self._show(frame)

    def _work(self) -> None:
        while True:
            self.redraw()
            if self._stopped.wait(self._interval):
                return
