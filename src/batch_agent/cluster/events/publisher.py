"""Publisher of this process's events, for the other processes of the run."""

import asyncio
import logging
import math
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
"""Maximum number of buffered events. The oldest ones are dropped first."""
_ANNOUNCED_EVERY = 3.0
"""Seconds after which a process without listeners announces itself again. A listening process answers the first
announcement that it sees of each process, and then gets the events since the last announcement but one."""
_MAX_BATCH = 2_000
_CLOSE_TIMEOUT = 2.0
"""Seconds to send the remaining events at the end of a run."""
_PUBLISHED = frozenset(
    {
        AgentReassigned, AgentStarted, CallsEnded, CallsStarted, LimitChanged, Notice, Paused, RequestRetried, Resumed,
        LoadSampled, ToolsUsed, TurnEnded, TurnStarted,
    }
)  # fmt: skip
"""Excludes run starts, scheduling reports and budget reports, which the submitter has for the whole run, and results,
which arrive with the facts."""


class EventPublisher:
    """Event sink that publishes to the coordinator. Without a listener, it only keeps the events of the last seconds.
    If the coordinator is unreachable, events are lost, but the run continues."""

    def __init__(
        self,
        updates: UpdateStream,
        worker: str,
        *,
        expects_listeners: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`expects_listeners`: whether another process is probably listening already. If so, the publisher announces
        itself at once."""
        self._updates = updates
        self._worker = worker
        self._clock = clock
        self._has_listeners = False
        self._announces = expects_listeners
        self._announced_at = -math.inf
        self._is_new = expects_listeners
        """Whether the first announcement may still be answered."""
        self._requests_events = self._sends_agents = False
        self._events: deque[TimedEvent] = deque()
        self._ended: deque[tuple[float, str]] = deque()
        """Ended agents, each with the time of its end."""
        self._running: dict[str, AgentStarted] = {}
        self._dropped = 0
        self._has_warned = False
        self._has_called = False
        self._wake_up = asyncio.Event()
        self._closing = asyncio.Event()
        self.account: Callable[[], ToolsUsed] | None = None
        """Returns what the tools of this process have done so far. It is sent along with other events, because the
        submitter does not wait for workers at the end."""

    def emit(self, event: Event) -> None:
        if type(event) is AgentStarted:
            self._running[event.key] = event
        elif type(event) is AgentReassigned:
            self._running.pop(event.key, None)
        elif type(event) is CallsEnded:
            self._has_called = True
        if type(event) in _PUBLISHED:
            self._buffer(event)

    def on_ended(self, key: str) -> None:
        """An agent ended in this process."""
        self._running.pop(key, None)
        self._ended.append((self._clock(), key))
        if self._has_listeners:
            self._wake_up.set()

    def request_events(self) -> None:
        """Asks the other processes for their events."""
        self._requests_events = True
        self._wake_up.set()

    def on_listener(self) -> None:
        """Handles a new listener. It receives the running agents first."""
        self._has_listeners = self._sends_agents = True
        self._wake_up.set()

    @asynccontextmanager
    async def run_in_background(self) -> AsyncIterator[None]:
        """Publishes while the block runs, and sends the remaining events at its end."""
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
            self._dropped += self._has_listeners
        self._events.append((self._clock(), event))
        if self._has_listeners:
            self._wake_up.set()

    async def _send(self) -> None:
        while not self._closing.is_set():
            await self._await_content()
            self._wake_up.clear()
            await self._send_all()

    async def _await_content(self) -> None:
        if self._announces:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(None if self._has_listeners else _ANNOUNCED_EVERY):
                await self._wake_up.wait()
        if not self._wake_up.is_set():
            self._forget(self._announced_at)
            self._announces, self._is_new = True, False
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_BATCH_SECONDS):
                await self._closing.wait()

    def _forget(self, before: float) -> None:
        while self._events and self._events[0][0] < before:
            self._events.popleft()
        while self._ended and self._ended[0][0] < before:
            self._ended.popleft()

    async def _send_all(self) -> None:
        """Sends all events. At the end of the run, it also announces that this process leaves."""
        while self._has_content or (self._closing.is_set() and self._sends_events):
            events = self._next_events() if self._sends_events else []
            dropped, message = self._dropped, self._message(events)
            try:
                await self._updates.publish(message.encode(), to_workers=message.is_listening)
            except StoreError as error:
                self._on_failure(error, message, len(events) + dropped)
                return
            for _ in message.ended:
                self._ended.popleft()
            if message.is_leaving:
                return

    @property
    def _sends_events(self) -> bool:
        """Whether to send events. Also true at the end of a process that was too short-lived to receive an answer."""
        return self._has_listeners or (self._is_new and self._closing.is_set())

    @property
    def _has_content(self) -> bool:
        requests_events = self._requests_events and not self._closing.is_set()
        has_events = self._sends_events and bool(self._events or self._ended)
        return has_events or self._announces or self._sends_agents or requests_events

    def _next_events(self) -> list[TimedEvent]:
        return [self._events.popleft() for _ in range(min(_MAX_BATCH, len(self._events)))]

    def _message(self, events: list[TimedEvent]) -> EventBatch:
        """Builds a message, completed with state that is known only when it is sent. An agent counts as ended once all
        its events have been sent."""
        now, is_all = self._clock(), self._sends_events and not self._events
        ended = tuple(key for _, key in self._ended) if is_all else ()
        has = tuple(self._running.values()) if self._sends_agents else ()
        dropped = [(now, _dropped_notice(self._dropped))] if self._dropped else []
        has_called = self._sends_events and self._has_called
        account = [(now, self.account())] if self.account is not None and (has_called or ended) else []
        lines = encode_events([*dropped, *events, *account])
        is_leaving = is_all and self._closing.is_set()
        message = EventBatch(
            self._worker, now, ended, has, self._requests_events, is_leaving, not self._has_listeners, lines
        )
        self._has_called = self._has_called and not is_all
        self._announces = self._sends_agents = self._requests_events = False
        self._announced_at = now
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
