"""Views that take their time get events in a thread of their own: a run never waits for a disk or a collector."""

import logging
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


@runtime_checkable
class SlowSink(Protocol):
    """A view on a run that may block. All its methods are called from one thread, in order."""

    def take(self, at: float, event: Event) -> None:
        """`at`: when it happened, in seconds since the epoch."""
        ...

    def flush(self) -> None:
        """After each handful of events."""
        ...

    def close(self) -> None: ...


class Aside:
    """An event sink that costs the run one append for each event, whatever the views behind it do. A view that fails
    is left out from then on, with a warning in the log."""

    def __init__(self, sinks: Sequence[SlowSink]) -> None:
        self._sinks = list(sinks)
        self._events: deque[tuple[float, Event]] = deque()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def emit(self, event: Event) -> None:
        self._events.append((time.time(), event))

    def __enter__(self) -> Self:
        self._over.clear()
        self._thread = threading.Thread(target=self._work, name="batch-agent-views", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Returns when every view has seen everything."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        for sink in self._sinks:
            try:
                sink.close()
            except Exception:  # noqa: BLE001 - a collector of others: it must not take the run's results with it
                _log.warning("%s could not be closed", type(sink).__name__, exc_info=True)

    def _work(self) -> None:
        while not self._over.wait(_BETWEEN):
            self._hand_over()
        self._hand_over()

    def _hand_over(self) -> None:
        events = [self._events.popleft() for _ in range(len(self._events))]
        for sink in list(self._sinks):
            try:
                for at, event in events:
                    sink.take(at, event)
                sink.flush()
            except Exception:  # noqa: BLE001 - as above
                _log.warning("%s failed, and is told no more", type(sink).__name__, exc_info=True)
                self._sinks.remove(sink)
