"""Views that take their time get events in a thread of their own: a run never waits for a disk or a collector."""

import contextvars
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from ..core.events import Event

_log = logging.getLogger("batch_agent")
_BETWEEN = 0.25
"""Seconds that events are gathered for."""
_MOST_EARLY = 10_000
"""Events that are kept for a run that has not begun."""


@runtime_checkable
class SlowSink(Protocol):
    """A view on a run that may block. All its methods are called from one thread, in order. One that is given to
    several runs is closed after each."""

    def take(self, at: float, event: Event) -> None:
        """`at`: when it happened, in seconds since the epoch."""
        ...

    def flush(self) -> None:
        """After each handful of events."""
        ...

    def close(self) -> None: ...


class Aside:
    """An event sink that costs the run one append for each event, whatever the views behind it do. A view that fails
    is told no more, with a warning in the log, and is closed with the others."""

    def __init__(self, sinks: Sequence[SlowSink]) -> None:
        self._sinks = tuple(sinks)
        self._failed: set[int] = set()
        self._events: deque[tuple[float, Event]] = deque()
        self._epoch = (
            time.time() - time.monotonic()
        )  # a clock that is set meanwhile does not change how long things take
        self._entered = 0
        self._process = 0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def emit(self, event: Event) -> None:
        """Before it is entered, too: a run tells of its beginnings."""
        if self._thread is not None or len(self._events) < _MOST_EARLY:
            self._events.append((self._epoch + time.monotonic(), event))

    def __enter__(self) -> Self:
        self._entered += 1
        if self._entered == 1:
            self._failed.clear()
            self._over.clear()
            self._process = os.getpid()
            work = contextvars.copy_context().run  # spans of the caller are the parents of ours
            self._thread = threading.Thread(target=work, args=(self._work,), name="batch-agent-views", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Returns when every view has seen everything and is closed. Interrupted, it leaves that to the thread."""
        self._entered -= 1
        if self._entered or self._process != os.getpid():  # in a fork the views are still the parent's
            return
        self._over.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while not self._over.wait(_BETWEEN):
            self._hand_over()
        self._hand_over()
        for sink in self._sinks:
            try:
                sink.close()
            except Exception:  # noqa: BLE001 - a collector of others: it must not take the run's results with it
                _log.warning("%s could not be closed", type(sink).__name__, exc_info=True)

    def _hand_over(self) -> None:
        events = [self._events.popleft() for _ in range(len(self._events))]
        for place, sink in enumerate(self._sinks):
            if place in self._failed:
                continue
            try:
                for at, event in events:
                    sink.take(at, event)
                sink.flush()
            except Exception:  # noqa: BLE001 - as above
                _log.warning("%s failed, and is told no more", type(sink).__name__, exc_info=True)
                self._failed.add(place)
