"""Calls of tools that one worker makes for all, and rates that all keep together."""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

import orjson

from .. import aio
from ..core.coordinator import CallOutcome, Coordinator
from ..core.errors import StoreError
from ..core.messages import ToolSource

T = TypeVar("T")
Make = Callable[[], Awaitable[CallOutcome]]

_PATIENCE = 3.0
"""Seconds after which a call that another worker makes is asked for again: the worker may be gone, or the news."""
_REST = 10.0
"""Seconds for which a hub that could not be reached is left alone."""
_PASSING = 1.0
"""Seconds for which those who wait can fetch an outcome that is not good for newcomers."""
_LARGEST = 1_000_000
"""Bytes of an outcome; what is larger is for each worker to make."""

_log = logging.getLogger("batch_agent")


class ClusterToolCalls:
    """The commons of one worker, at a hub. Whoever claims a call makes it, and lands what came of it; the others wait.
    A landing is sent in the background: it keeps nobody here waiting, nor does it end with an agent that leaves."""

    def __init__(self, hub: Coordinator, worker: str) -> None:
        self._hub = hub
        self._worker = worker
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._making: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._rests_until = -math.inf
        self._has_warned = False

    def on_completed(self, names: Iterable[str]) -> None:
        """These calls were in the news (`Updates.completed_calls`)."""
        for name in names:
            for news in self._waiting.get(name, ()):
                news.set()

    async def call(self, name: str, make: Make) -> tuple[CallOutcome, ToolSource]:
        waited_since: float | None = None
        with self._listening(name) as news:  # from before the claim: its answer and the news come by different ways
            while not self._is_resting:
                news.clear()
                asked = aio.now()
                claimed = await self._claim(name)
                if claimed is True:
                    return await self._make(name, make), "executed"
                if claimed is not False:
                    found = _taken(decode(claimed), waited_since)  # none where another one's time was over
                    if found is None:
                        break
                    return found, "cached" if waited_since is None else "shared"
                waited_since = asked
                with suppress(TimeoutError):
                    async with asyncio.timeout(_PATIENCE):
                        await news.wait()
        return await make(), "executed"

    async def reserve_rate(self, name: str, *, interval: float, ahead: float) -> float | None:
        if self._is_resting:
            return None
        try:
            return await self._hub.reserve_rate(name, interval=interval, ahead=ahead)
        except StoreError as error:
            self._rest(error)
            return None

    async def aclose(self) -> None:
        """What is still to be landed is, if that can be done soon. For when no more calls are made, and the hub is
        still open."""
        try:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=_PATIENCE)
        finally:
            late = set(self._tasks)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    @contextmanager
    def _listening(self, name: str) -> Iterator[asyncio.Event]:
        news = asyncio.Event()
        self._waiting.setdefault(name, set()).add(news)
        try:
            yield news
        finally:
            others = self._waiting[name]
            others.discard(news)
            if not others:
                del self._waiting[name]

    async def _claim(self, name: str) -> bytes | bool:
        """Whoever leaves meanwhile may have been given the call, and then lets go of it."""
        claiming = self._keep(self._claimed(name))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            self._keep(self._let_go(name, claiming))
            raise

    async def _claimed(self, name: str) -> bytes | bool:
        try:
            return await self._hub.claim(name, self._worker)
        except StoreError as error:  # it may be ours: nobody knows, so it is made and landed
            self._rest(error)
            return True

    async def _let_go(self, name: str, claiming: "asyncio.Task[bytes | bool]") -> None:
        if await claiming is True and not self._making[name]:
            await self._land(name, None)

    async def _make(self, name: str, make: Make) -> CallOutcome:
        made: CallOutcome | None = None
        self._making[name] += 1
        try:
            made = await make()
        finally:
            self._making[name] -= 1
            if made is not None or not self._making[name]:  # else another one of ours is still at it
                self._keep(self._land(name, made))
            if not self._making[name]:
                del self._making[name]
        return made

    async def _land(self, name: str, made: CallOutcome | None) -> None:
        """Again until it has arrived: for as long as this worker lives, nobody else can make a call that it claimed."""
        until = aio.now() + (made.ttl if made is not None else 0.0)
        while True:
            good = until - aio.now()
            is_passing = good < _PASSING
            outcome = encode(replace(made, ttl=0.0 if is_passing else good)) if made is not None else None
            if outcome is not None and len(outcome) > _LARGEST:
                outcome = None
            try:
                await self._hub.complete_call(name, self._worker, outcome, ttl=_PASSING if is_passing else good)
            except StoreError as error:
                self._rest(error)
                await asyncio.sleep(_REST)
            else:
                return

    def _keep(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """A task that ends with this, if not before."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @property
    def _is_resting(self) -> bool:
        return aio.now() < self._rests_until

    def _rest(self, error: StoreError) -> None:
        self._rests_until = aio.now() + _REST
        if not self._has_warned:
            self._has_warned = True
            _log.warning("%s While that lasts, workers share no tool calls, and each keeps the rates by itself.", error)


def encode(made: CallOutcome) -> bytes:
    good = None if math.isinf(made.ttl) else made.ttl
    return orjson.dumps([made.content, made.is_error, made.seconds, good, made.timed_out])


def decode(data: bytes) -> CallOutcome:
    content, is_error, seconds, good, timed_out = orjson.loads(data)
    return CallOutcome(content, is_error, seconds, math.inf if good is None else good, timed_out)


def _taken(made: CallOutcome, waited_since: float | None) -> CallOutcome | None:
    """What another worker has made, as good as it surely is still: how old it is can only be told by those who have
    waited for it. None: it is not for us, because it is only for those, or their time was over and ours is not."""
    if made.timed_out:
        return None
    if waited_since is not None:
        return replace(made, ttl=max(0.0, made.ttl - (aio.now() - waited_since)))
    if not made.ttl:
        return None
    return made if math.isinf(made.ttl) else replace(made, ttl=0.0)
