"""Delivery of events to slow sinks in a background thread, so that a run never waits for a disk or a collector."""

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
from ..core.protocols.event_sink import ExchangeSink, SlowSink
from ..core.requests import Exchange, RequestObserver

_log = logging.getLogger("batch_agent")
_FLUSH_INTERVAL = 0.25
_MAX_EARLY_EVENTS = 10_000
"""Maximum number of events that are kept before the run has started."""
_REORDER_SECONDS = 1.0
"""Seconds that events are held back for earlier ones, if some arrive late."""
_time_of = itemgetter(0)


@runtime_checkable
class TimedSink(Protocol):
    """An event sink that also accepts past events with their times."""

    def emit_at(self, at: float, event: Event) -> None:
        """`at`: time of the event, by `time.monotonic`."""
        ...


class BackgroundSink:
    """An event sink that only appends to a queue. A thread passes the events to the slow sinks, ordered by time. A sink
    that raises gets no more events, with a warning in the log, and is closed with the others."""

    def __init__(self, sinks: Sequence[SlowSink]) -> None:
        self._sinks = tuple(sinks)
        self._failed: set[int] = set()
        self._events: deque[tuple[float, Event]] = deque()
        self._exchanges: deque[Exchange] = deque()
        self._held: list[tuple[float, Event]] = []
        """Events that are held back for earlier ones."""
        self._has_late_events = False
        self._delivered_until = 0.0
        """Time of the last event delivered to the sinks."""
        self._epoch = time.time() - time.monotonic()  # read once: setting the clock must not change durations
        self._entered = 0
        self._process = 0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def emit(self, event: Event) -> None:
        """Queues an event. Also works before the sink is entered: setup emits events too."""
        if self._thread is not None or len(self._events) < _MAX_EARLY_EVENTS:
            self._events.append((self._epoch + time.monotonic(), event))

    def emit_at(self, at: float, event: Event) -> None:
        """Queues a late event. If it is too late to be reordered, it gets the time of the last delivered event."""
        self._has_late_events = True
        self._events.append((self._epoch + min(at, time.monotonic()), event))

    @property
    def request_observer(self) -> RequestObserver | None:
        """Observer of the run's requests; None if no sink wants them."""
        wanted = any(isinstance(sink, ExchangeSink) and sink.wants_exchanges for sink in self._sinks)
        return self._exchanges.append if wanted else None

    def __enter__(self) -> Self:
        self._entered += 1
        if self._entered == 1:
            self._failed.clear()
            self._stopped.clear()
            self._process = os.getpid()
            work = contextvars.copy_context().run  # the caller's current span is the parent of our spans
            self._thread = threading.Thread(target=work, args=(self._work,), name="batch-agent-views", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits until every sink has received all events and is closed. If interrupted, leaves the rest to the
        thread."""
        self._entered -= 1
        if self._entered or self._process != os.getpid():  # in a fork, the sinks belong to the parent
            return
        self._stopped.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while not self._stopped.wait(_FLUSH_INTERVAL):
            self._deliver(self._in_order(self._epoch + time.monotonic() - _REORDER_SECONDS))
        self._deliver(self._in_order(float("inf")))
        self._has_late_events, self._delivered_until = False, 0.0
        for sink in self._sinks:
            try:
                sink.close()
            except BaseException:  # noqa: BLE001 - a user's sink must not fail the run
                _log.warning("Closing the event sink %s failed", type(sink).__name__, exc_info=True)

    def _in_order(self, until: float) -> list[tuple[float, Event]]:
        """Takes the queued events, ordered by time. If later ones may still be reordered, only those up to `until`."""
        new = [self._events.popleft() for _ in range(len(self._events))]
        events, self._held = self._held + new, []
        if self._has_late_events:
            events.sort(key=_time_of)
            split = bisect_right(events, until, key=_time_of)
            self._held = events[split:]
            events = [(max(at, self._delivered_until), event) for at, event in events[:split]]
        if events:
            self._delivered_until = events[-1][0]
        return events

    def _deliver(self, events: Sequence[tuple[float, Event]]) -> None:
        # Taken after the events: an exchange is queued before the events that follow from it.
        exchanges = [self._exchanges.popleft() for _ in range(len(self._exchanges))] if self._exchanges else []
        for number, sink in enumerate(self._sinks):
            if number in self._failed:
                continue
            try:
                if exchanges and isinstance(sink, ExchangeSink) and sink.wants_exchanges:
                    for exchange in exchanges:
                        sink.take_exchange(exchange)
                for at, event in events:
                    sink.take(at, event)
                sink.flush()
            except BaseException:  # noqa: BLE001 - as above
                _log.warning("The event sink %s failed and gets no more events", type(sink).__name__, exc_info=True)
                self._failed.add(number)
