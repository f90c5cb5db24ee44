"""Publishes the events of this process to the other processes of the run."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from ...core.coordinator import UpdateStream
from ...core.errors import StoreError
from ...core.events import (
    AgentReassigned,
    AgentStarted,
    CallsEnded,
    CallsStarted,
    Event,
    LimitChanged,
    LoadSampled,
    Notice,
    Paused,
    RequestRetried,
    Resumed,
    ToolsUsed,
    TurnEnded,
    TurnStarted,
)
from .message import EventBatch, TimedEvent, encode_events

_log = logging.getLogger("batch_agent")
_BATCH_SECONDS = 0.25
"""Seconds for which events are collected."""
_MAX_BUFFERED = 10_000
"""Buffered events; the oldest are dropped first."""
_MAX_BATCH = 2_000
_CLOSE_TIMEOUT = 2.0
"""Seconds for the remaining events at the end of a run."""
_PUBLISHED = frozenset(
    {
        AgentReassigned, AgentStarted, CallsEnded, CallsStarted, LimitChanged, Notice, Paused, RequestRetried, Resumed,
        LoadSampled, ToolsUsed, TurnEnded, TurnStarted,
    }
)  # fmt: skip
"""Not run starts, scheduling and budget reports, which the submitter has for the whole run; nor results, which come
with the facts."""


class EventPublisher:
    """Event sink. Sends nothing while no process listens. If the coordinator cannot be reached, events are lost, but
    the run continues."""

    def __init__(
        self,
        updates: UpdateStream,
        worker: str,
        *,
        has_listeners: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`has_listeners`: whether a process listens for certain; otherwise one announces itself."""
        self._updates = updates
        self._worker = worker
        self._clock = clock
        self._has_listeners = has_listeners
        self._requests_events = self._sends_agents = False
        self._events: deque[TimedEvent] = deque()
        self._ended: list[str] = []
        self._running: dict[str, AgentStarted] = {}
        self._dropped = 0
        self._has_warned = False
        self._has_called = False
        self._wake_up = asyncio.Event()
        self._closing = asyncio.Event()
        self.account: Callable[[], ToolsUsed] | None = None
        """What the tools of this process did so far. Sent with other events: at its end, the submitter does not wait
        for workers."""

    def emit(self, event: Event) -> None:
        if type(event) is AgentStarted:
            self._running[event.key] = event
        elif type(event) is AgentReassigned:
            self._running.pop(event.key, None)
        elif type(event) is CallsEnded:
            self._has_called = True
        if self._has_listeners and type(event) in _PUBLISHED:
            self._buffer(event)

    def on_ended(self, key: str) -> None:
        """An agent ended in this process."""
        self._running.pop(key, None)
        if self._has_listeners:
            self._ended.append(key)
            self._wake_up.set()

    def request_events(self) -> None:
        """Requests events of the other processes."""
        self._requests_events = True
        self._wake_up.set()

    def on_listener(self) -> None:
        """Another process listens from now on, and first gets the running agents."""
        self._has_listeners = self._sends_agents = True
        self._wake_up.set()

    @asynccontextmanager
    async def run_in_background(self) -> AsyncIterator[None]:
        """Publishes while the block runs, and the rest at its end."""
        task = asyncio.get_running_loop().create_task(self._send())
        try:
            yield
        finally:
            self._closing.set()
            self._wake_up.set()
            await asyncio.wait([task], timeout=_CLOSE_TIMEOUT)
            task.cancel()
            await asyncio.wait([task])

    def _buffer(self, event: Event) -> None:
        if len(self._events) >= _MAX_BUFFERED:
            self._events.popleft()
            self._dropped += 1
        self._events.append((self._clock(), event))
        self._wake_up.set()

    async def _send(self) -> None:
        while not self._closing.is_set():
            await self._wake_up.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(_BATCH_SECONDS):
                    await self._closing.wait()
            self._wake_up.clear()
            await self._send_all()

    async def _send_all(self) -> None:
        """At the end also announces that this process leaves."""
        while self._has_content or (self._closing.is_set() and self._has_listeners):
            events = [self._events.popleft() for _ in range(min(_MAX_BATCH, len(self._events)))]
            dropped, message = self._dropped, self._message(events)
            try:
                await self._updates.publish(message.encode(), to_workers=message.is_listening)
            except StoreError as error:
                self._on_failure(error, message, len(events) + dropped)
                return
            del self._ended[: len(message.ended)]
            if message.is_leaving:
                return

    @property
    def _has_content(self) -> bool:
        requests_events = self._requests_events and not self._closing.is_set()
        return bool(self._events or self._ended or self._sends_agents or requests_events)

    def _message(self, events: list[TimedEvent]) -> EventBatch:
        """Includes what is known only now. An agent counts as ended once all its events are sent."""
        now, is_all = self._clock(), not self._events
        ended = tuple(self._ended) if is_all else ()
        has = tuple(self._running.values()) if self._sends_agents else ()
        dropped = [(now, _dropped_notice(self._dropped))] if self._dropped else []
        account = [(now, self.account())] if self.account is not None and (self._has_called or ended) else []
        lines = encode_events([*dropped, *events, *account])
        message = EventBatch(
            self._worker, now, ended, has, self._requests_events, is_all and self._closing.is_set(), lines
        )
        self._has_called = self._has_called and not is_all
        self._sends_agents = self._requests_events = False
        self._dropped = 0
        return message

    def _on_failure(self, error: StoreError, message: EventBatch, dropped: int) -> None:
        self._dropped += dropped
        self._requests_events |= message.is_listening
        self._sends_agents |= bool(message.has)
        if not self._has_warned:
            self._has_warned = True
            _log.warning("%s Meanwhile, other processes do not see the events of this one.", error)


def _dropped_notice(events: int) -> Notice:
    return Notice(f"{events:,} events of this worker were lost: its counts are too low.")
