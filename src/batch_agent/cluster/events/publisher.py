"""Tells the other processes of a run what happens in this one."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from ...core.coordinator import Coordinator
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
from .message import EventBatch, Happened, encoded

_log = logging.getLogger("batch_agent")
_BETWEEN = 0.25
"""Seconds that events are gathered for."""
_MOST = 10_000
"""Events that wait to be told; the oldest go first."""
_AT_ONCE = 2_000
_LAST_WORDS = 2.0
"""Seconds for what is to be told at the end of a run."""
_TOLD = frozenset(
    {
        AgentReassigned, AgentStarted, CallsEnded, CallsStarted, LimitChanged, Notice, Paused, RequestRetried, Resumed,
        LoadSampled, ToolsUsed, TurnEnded, TurnStarted,
    }
)  # fmt: skip
"""Not that a run has begun, how it was scheduled and what was spent: whoever asked for the run knows that of all of it.
Nor results: they are handed out with the facts."""


class EventPublisher:
    """An event sink. It sends nothing while nobody listens, and a hub that cannot be reached costs what would have been
    told, never the run."""

    def __init__(
        self, hub: Coordinator, worker: str, *, is_wanted: bool = True, clock: Callable[[], float] = time.time
    ) -> None:
        """`is_wanted`: whether somebody listens for sure; else, when one says so."""
        self._hub = hub
        self._worker = worker
        self._clock = clock
        self._is_wanted = is_wanted
        self._is_greeting = self._is_asked = False
        self._events: deque[Happened] = deque()
        self._ended: list[str] = []
        self._under_way: dict[str, AgentStarted] = {}
        self._missed = 0
        self._has_warned = False
        self._has_called = False
        self._something = asyncio.Event()
        self._over = asyncio.Event()
        self.account: Callable[[], ToolsUsed] | None = None
        """What the tools of this process did so far. It goes with what was told: at the end, who asked for the run does
        not wait for those who work on it."""

    def emit(self, event: Event) -> None:
        kind = type(event)
        if kind not in _TOLD:
            return
        if isinstance(event, AgentStarted):
            self._under_way[event.key] = event
        elif isinstance(event, AgentReassigned):
            self._under_way.pop(event.key, None)
        elif kind is CallsEnded:
            self._has_called = True
        self._tell(event)

    def ended(self, key: str) -> None:
        """An agent came to its end in this process."""
        self._under_way.pop(key, None)
        if self._is_wanted:
            self._ended.append(key)
            self._something.set()

    def listens(self) -> None:
        """Asks the others to tell what happens there."""
        self._is_greeting = True
        self._something.set()

    def is_heard(self) -> None:
        """Somebody listens, from now on: first of all to what is under way here."""
        self._is_wanted = self._is_asked = True
        self._something.set()

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """For as long as the block runs; what is there at its end is sent too."""
        task = asyncio.get_running_loop().create_task(self._send())
        try:
            yield
        finally:
            self._over.set()
            self._something.set()
            await asyncio.wait([task], timeout=_LAST_WORDS)
            task.cancel()
            await asyncio.wait([task])

    def _tell(self, event: Event) -> None:
        if not self._is_wanted:
            return
        if len(self._events) >= _MOST:
            self._events.popleft()
            self._missed += 1
        self._events.append((self._clock(), event))
        self._something.set()

    async def _send(self) -> None:
        while not self._over.is_set():
            await self._something.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(_BETWEEN):
                    await self._over.wait()
            self._something.clear()
            await self._send_all()

    async def _send_all(self) -> None:
        """Also that this process goes, when it does."""
        while self._has_something or (self._over.is_set() and self._is_wanted):
            events = [self._events.popleft() for _ in range(min(_AT_ONCE, len(self._events)))]
            missed, told = self._missed, self._message(events)
            try:
                await self._hub.publish(told.encode())
            except StoreError as error:
                self._failed(error, told, len(events) + missed)
                return
            del self._ended[: len(told.ended)]
            if told.is_leaving:
                return

    @property
    def _has_something(self) -> bool:
        is_greeting = self._is_greeting and not self._over.is_set()
        return bool(self._events or self._ended or self._is_asked or is_greeting)

    def _message(self, events: list[Happened]) -> EventBatch:
        """With what is known only now. Agents have ended once all is told of them."""
        now, is_all = self._clock(), not self._events
        ended = tuple(self._ended) if is_all else ()
        has = tuple(self._under_way.values()) if self._is_asked else ()
        missed = [(now, _missing(self._missed))] if self._missed else []
        account = [(now, self.account())] if self.account is not None and (self._has_called or ended) else []
        lines = encoded([*missed, *events, *account])
        told = EventBatch(self._worker, now, ended, has, self._is_greeting, is_all and self._over.is_set(), lines)
        self._has_called = self._has_called and not is_all
        self._is_asked = self._is_greeting = False
        self._missed = 0
        return told

    def _failed(self, error: StoreError, told: EventBatch, missed: int) -> None:
        self._missed += missed
        self._is_greeting |= told.is_listening
        self._is_asked |= bool(told.has)
        if not self._has_warned:
            self._has_warned = True
            _log.warning("%s While that lasts, other processes do not see what this one does.", error)


def _missing(events: int) -> Notice:
    return Notice(f"{events:,} events were not told: what is shown of this worker is too little.")
