"""Relay of events between the processes of a run: publishes those of this process, and shows those of the others."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from ...core.coordinator import UpdateStream
from ...core.events import (
    AgentFinished,
    AgentReassigned,
    AgentStarted,
    Event,
    LoadSampled,
    Paused,
    Resumed,
    RunStarted,
    ToolsUsed,
    WorkerEvent,
)
from ...core.protocols.event_sink import EventSink
from ...observe.background_sink import TimedSink
from .agent_tracker import AgentTracker
from .message import EventBatch, read
from .publisher import EventPublisher

_GONE_AFTER = 15.0
"""Seconds of silence after which a worker is considered gone. A live worker reports its load about once a second."""
_CLOSE_TIMEOUT = 2.0
"""Seconds that the end of a run waits for the last events about its results."""


@dataclass(slots=True)
class _RemoteWorker:
    """Another worker of which messages have arrived."""

    last_message: float
    backends: set[str] = field(default_factory=set)
    is_paused: bool = False


class EventRelay:
    """Event sink for all events of this process. From its `RunStarted` on, a submitter also emits the events of other
    processes, and holds each result back briefly until the events from its worker have arrived. Views thus see each
    agent start, work and finish, wherever it runs. Failures here do not end a run."""

    def __init__(
        self,
        updates: UpdateStream,
        worker: str,
        events: EventSink | None,
        *,
        is_submitter: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`events`: the sinks of this process. `is_submitter`: whether this process receives results."""
        self.publisher = EventPublisher(updates, worker, expects_listeners=not is_submitter)
        self.local: EventSink = _LocalSink(self)
        """Sink for the engine of a submitter. The submitter reports results itself."""
        self._worker = worker
        self._events = events
        self._times = events if isinstance(events, TimedSink) else None
        self._is_submitter = is_submitter
        self._clock = clock
        self._began: float | None = None
        self._has_agents = False
        self._others: dict[str, _RemoteWorker] = {}
        self._clock_offsets: dict[str, float] = {}
        """Offset from each worker's clock to ours, measured by its fastest message."""
        self._used: dict[str, ToolsUsed] = {}
        """Everything that the tools of each worker have done so far."""
        self._tracker = AgentTracker(self._show)
        self._received = asyncio.Event()

    def emit(self, event: Event) -> None:
        if not self._is_submitter:
            self._emit_as_worker(event)
        elif self._events is None:  # no view in this process; other submitters may have one
            if not isinstance(event, AgentFinished):
                self.publisher.emit(event)
        elif isinstance(event, AgentFinished):
            self._tracker.on_result(event, self._clock())
        else:
            self._emit_local(event)

    def on_agent_ended(self, key: str) -> None:
        """Handles the end of an agent in this process. The result may belong to another submitter."""
        self.publisher.on_ended(key)
        if self._events is not None:
            self._tracker.on_ended(self._worker, key, self._clock())

    def on_messages(self, messages: Iterable[bytes]) -> None:
        """Handles published messages. Also called with none, to let time pass."""
        for data in messages:
            message = read(data)
            if message is not None and message.worker != self._worker:
                self._receive(message)
        now = self._clock()
        for name in [name for name, other in self._others.items() if now - other.last_message > _GONE_AFTER]:
            self._remove_worker(name)
        self._tracker.expire(now)
        self._received.set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Publishes while the block runs. If the block ends normally, waits for the last events about its results."""
        async with self.publisher.run_in_background():
            try:
                yield
                await self._await_last_events()
            finally:
                self._close()

    def _emit_as_worker(self, event: Event) -> None:
        if isinstance(event, AgentFinished):
            self.publisher.on_ended(event.result.key)
        else:
            self.publisher.emit(event)
        if self._events is not None:
            self._events.emit(event)

    def _emit_local(self, event: Event) -> None:
        if isinstance(event, AgentStarted):
            self._has_agents = True
        elif isinstance(event, LoadSampled) and not self._has_agents:
            return  # a process without agents does not load a backend
        self.publisher.emit(event)
        self._tracker.on_event(self._worker, self._clock(), event)
        if isinstance(event, RunStarted):
            self._began = self._clock()
            self.publisher.request_events()

    def _receive(self, message: EventBatch) -> None:
        if message.is_listening:
            self.publisher.on_listener()
        if self._began is None or self._events is None:
            return
        now = self._clock()
        other = self._others.get(message.worker)
        if other is None:
            other = self._others[message.worker] = _RemoteWorker(now)
            self.publisher.request_events()  # for its running agents
        elif message.is_announcement:
            self.publisher.request_events()  # the last request was lost
        other.last_message = now
        offset = self._clock_offsets[message.worker] = min(
            self._clock_offsets.get(message.worker, math.inf), now - message.sent
        )
        events = [(min(max(at + offset, self._began), now), event) for at, event in message.events]
        for began in message.has:
            self._tracker.on_listed(message.worker, events[0][0] if events else now, began)
        for at, event in events:
            self._emit_remote(message.worker, other, at, event)
        for key in message.ended:
            self._tracker.on_ended(message.worker, key, now)
        if message.is_leaving:
            self._remove_worker(message.worker)

    def _emit_remote(self, name: str, other: _RemoteWorker, at: float, event: Event) -> None:
        if isinstance(event, ToolsUsed):
            self._used[name] = event
            return
        if isinstance(event, LoadSampled):
            other.backends.add(event.backend)
        elif isinstance(event, Paused | Resumed):
            other.is_paused = isinstance(event, Paused)
        self._tracker.on_event(name, at, event)

    def _remove_worker(self, name: str) -> None:
        """Removes a worker: its agents no longer run there, and its share of the backends is free."""
        other, now = self._others.pop(name), self._clock()
        self._tracker.on_worker_left(name, now)
        for backend in other.backends:
            self._show(name, now, LoadSampled(backend, 0, 0))
        if other.is_paused:
            self._show(name, now, Resumed())

    async def _await_last_events(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                while self._tracker.is_waiting:
                    self._received.clear()
                    await self._received.wait()

    def _close(self) -> None:
        now = self._clock()
        self._tracker.close(self._worker, now)
        for name, used in self._used.items():
            self._show(name, now, used)

    def _show(self, worker: str, at: float, event: Event) -> None:
        """Emits an event of a worker. Local events get the current time, except that the loss of an agent may be
        learned from another worker."""
        if self._events is None:
            return
        is_local = worker in ("", self._worker)
        shown = event if is_local or isinstance(event, AgentFinished) else WorkerEvent(worker, event)
        if self._times is None or (is_local and not isinstance(event, AgentReassigned)):
            self._events.emit(shown)
        else:
            self._times.emit_at(at, shown)


class _LocalSink:
    def __init__(self, relay: EventRelay) -> None:
        self._relay = relay

    def emit(self, event: Event) -> None:
        if isinstance(event, AgentFinished):
            self._relay.on_agent_ended(event.result.key)
        else:
            self._relay.emit(event)
