"""Views that take their time get events in a thread of their own: a run never waits for a disk or a collector."""

import contextvars
import logging
import os
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from operator import itemgetter
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from ..core.events import Event
from ..core.protocols import SlowSink

_log = logging.getLogger("batch_agent")
_BETWEEN = 0.25
"""Seconds that events are gathered for."""
_MOST_EARLY = 10_000
"""Events that are kept for a run that has not begun."""
_GRACE = 1.0
"""Seconds that events wait for earlier ones, where some are told later than they happened."""
_when = itemgetter(0)


@runtime_checkable
class TakesTimes(Protocol):
    """An event sink that can be told of what happened a while ago."""

    def emit_at(self, at: float, event: Event) -> None:
        """`at`: when it happened, by `time.monotonic`."""
        ...


class BackgroundSink:
    """An event sink that costs the run one append for each event, whatever the views behind it do. They get events in
    the order of their times. A view that fails is told no more, with a warning in the log, and is closed with the
    others."""

    def __init__(self, sinks: Sequence[SlowSink]) -> None:
        self._sinks = tuple(sinks)
        self._failed: set[int] = set()
        self._events: deque[tuple[float, Event]] = deque()
        self._waiting: list[tuple[float, Event]] = []
        """Those that earlier ones may still come before."""
        self._some_are_late = False
        self._handed = 0.0
        """The time of the last event that the views have."""
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

    def emit_at(self, at: float, event: Event) -> None:
        """One that comes too late to be put where it belongs gets the time of what the views were told last."""
        self._some_are_late = True
        self._events.append((self._epoch + min(at, time.monotonic()), event))

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
            self._hand_over(self._in_order(self._epoch + time.monotonic() - _GRACE))
        self._hand_over(self._in_order(float("inf")))
        self._some_are_late, self._handed = False, 0.0
        for sink in self._sinks:
            try:
                sink.close()
            except BaseException:  # noqa: BLE001 - a collector of others: it must not take the run's results with it
                _log.warning("%s could not be closed", type(sink).__name__, exc_info=True)

    def _in_order(self, until: float) -> list[tuple[float, Event]]:
        """What there is. Where some are late, only what happened until then."""
        events = [*self._waiting, *(self._events.popleft() for _ in range(len(self._events)))]
        self._waiting = []
        if self._some_are_late:
            events.sort(key=_when)
            split = bisect_right(events, until, key=_when)
            self._waiting = events[split:]
            events = [(max(at, self._handed), event) for at, event in events[:split]]
        if events:
            self._handed = events[-1][0]
        return events

    def _hand_over(self, events: Sequence[tuple[float, Event]]) -> None:
        for place, sink in enumerate(self._sinks):
            if place in self._failed:
                continue
            try:
                for at, event in events:
                    sink.take(at, event)
                sink.flush()
            except BaseException:  # noqa: BLE001 - as above
                _log.warning("%s failed, and is told no more", type(sink).__name__, exc_info=True)
                self._failed.add(place)
