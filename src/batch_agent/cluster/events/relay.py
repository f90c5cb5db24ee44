"""The events of a process that shares its run: others are told of them, and what others tell is seen here too."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from ...core.coordinator import Coordinator
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
from ...core.protocols import EventSink
from ...observe.background_sink import TimedSink
from .agent_tracker import AgentTracker
from .message import EventBatch, read
from .publisher import EventPublisher

_SILENCE = 15.0
"""Seconds after which a worker that tells nothing is taken to be gone: it says about once in one how busy it is."""
_LAST_WORDS = 2.0
"""Seconds that the end of a run waits for what others have to tell of the last results."""


@dataclass(slots=True)
class _Other:
    """Another worker that was heard of."""

    heard: float
    backends: set[str] = field(default_factory=set)
    is_paused: bool = False


class EventRelay:
    """An event sink, for all that happens in this process. One that asks for the run hears the others from its
    `RunStarted` on, and its results wait a moment for what their workers tell: views see an agent begin, work and be
    done, wherever it was. Nothing here can end a run."""

    def __init__(
        self,
        hub: Coordinator,
        worker: str,
        events: EventSink | None,
        *,
        asks: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`events`: who watches in this process. `asks`: whether the results come here."""
        self.telling = EventPublisher(hub, worker, is_wanted=not asks)
        self.here: EventSink = _Here(self)
        """For the engine of one that asks: results are the caller's to tell of."""
        self._worker = worker
        self._events = events
        self._times = events if isinstance(events, TimedSink) else None
        self._asks = asks
        self._clock = clock
        self._began: float | None = None
        self._has_agents = False
        self._others: dict[str, _Other] = {}
        self._behind: dict[str, float] = {}
        """By worker, what to add to the times by its clock to have them by ours: as of the message that was fastest."""
        self._used: dict[str, ToolsUsed] = {}
        """By worker: all that its tools did so far."""
        self._whereabouts = AgentTracker(self._show)
        self._news = asyncio.Event()

    def emit(self, event: Event) -> None:
        if not self._asks:
            self._emit_plainly(event)
        elif self._events is None:  # nobody watches here; other callers may
            if not isinstance(event, AgentFinished):
                self.telling.emit(event)
        elif isinstance(event, AgentFinished):
            self._whereabouts.finished(event, self._clock())
        else:
            self._happened_here(event)

    def ended_here(self, key: str) -> None:
        """An agent came to its end in this process, whoever gets the result."""
        self.telling.ended(key)
        if self._events is not None:
            self._whereabouts.ended(self._worker, key, self._clock())

    def heard(self, told: Iterable[bytes]) -> None:
        """What the hub's news bring; also where they bring nothing."""
        for data in told:
            message = read(data)
            if message is not None and message.worker != self._worker:
                self._hear(message)
        now = self._clock()
        for name in [name for name, other in self._others.items() if now - other.heard > _SILENCE]:
            self._leaves(name)
        self._whereabouts.look(now)
        self._news.set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """For as long as the block runs, others are told. Where it comes to its end, what they still have to tell of
        the results is waited for."""
        async with self.telling.sending():
            try:
                yield
                await self._hear_the_last()
            finally:
                self._close()

    def _emit_plainly(self, event: Event) -> None:
        if isinstance(event, AgentFinished):
            self.telling.ended(event.result.key)
        else:
            self.telling.emit(event)
        if self._events is not None:
            self._events.emit(event)

    def _happened_here(self, event: Event) -> None:
        if isinstance(event, AgentStarted):
            self._has_agents = True
        elif isinstance(event, LoadSampled) and not self._has_agents:
            return  # one that only asks has no part in how full a backend is
        self.telling.emit(event)
        self._whereabouts.happened(self._worker, self._clock(), event)
        if isinstance(event, RunStarted):
            self._began = self._clock()
            self.telling.listens()

    def _hear(self, message: EventBatch) -> None:
        if message.is_listening:
            self.telling.is_heard()
        if self._began is None or self._events is None:
            return
        now = self._clock()
        other = self._others.get(message.worker)
        if other is None:
            other = self._others[message.worker] = _Other(now)
            self.telling.listens()  # to what was under way there before
        other.heard = now
        behind = self._behind[message.worker] = min(self._behind.get(message.worker, math.inf), now - message.sent)
        happened = [(min(max(at + behind, self._began), now), event) for at, event in message.events]
        for began in message.has:
            self._whereabouts.has(message.worker, happened[0][0] if happened else now, began)
        for at, event in happened:
            self._happened_there(message.worker, other, at, event)
        for key in message.ended:
            self._whereabouts.ended(message.worker, key, now)
        if message.is_leaving:
            self._leaves(message.worker)

    def _happened_there(self, name: str, other: _Other, at: float, event: Event) -> None:
        if isinstance(event, ToolsUsed):
            self._used[name] = event
            return
        if isinstance(event, LoadSampled):
            other.backends.add(event.backend)
        elif isinstance(event, Paused | Resumed):
            other.is_paused = isinstance(event, Paused)
        self._whereabouts.happened(name, at, event)

    def _leaves(self, name: str) -> None:
        """Its agents are not under way there any more, and what it had of the backends is free."""
        other, now = self._others.pop(name), self._clock()
        self._whereabouts.leaves(name, now)
        for backend in other.backends:
            self._show(name, now, LoadSampled(backend, 0, 0))
        if other.is_paused:
            self._show(name, now, Resumed())

    async def _hear_the_last(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                while self._whereabouts.is_waiting:
                    self._news.clear()
                    await self._news.wait()

    def _close(self) -> None:
        now = self._clock()
        self._whereabouts.close(self._worker, now)
        for name, used in self._used.items():
            self._show(name, now, used)

    def _show(self, worker: str, at: float, event: Event) -> None:
        """What happens here happens now; but that it has lost an agent may be known from another one."""
        if self._events is None:
            return
        is_here = worker in ("", self._worker)
        shown = event if is_here or isinstance(event, AgentFinished) else WorkerEvent(worker, event)
        if self._times is None or (is_here and not isinstance(event, AgentReassigned)):
            self._events.emit(shown)
        else:
            self._times.emit_at(at, shown)


class _Here:
    def __init__(self, hearing: EventRelay) -> None:
        self._hearing = hearing

    def emit(self, event: Event) -> None:
        if isinstance(event, AgentFinished):
            self._hearing.ended_here(event.result.key)
        else:
            self._hearing.emit(event)
