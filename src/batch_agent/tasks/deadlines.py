"""One time limit for many tasks, with one timer for all of them: a timer each costs more than the rest of a turn."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

Extend = Callable[[float, float], float | None]


class Deadlines:
    """`with deadlines.watch(task): ...` gives what is inside `limit` seconds (None: for ever), then cancels it and
    raises TimeoutError, as asyncio.timeout does. The limit is the same for all: who entered first is due first."""

    def __init__(self, limit: float | None, until: float | None = None) -> None:
        """`until`: a time of the loop's clock, at which all end whatever the limit."""
        self.limit = limit
        self._until = until
        self._open: dict[Watch, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, task: "asyncio.Task[Any]", extend: Extend | None = None) -> "Watch":
        """`task` is the running one: asking for it costs more than the rest. `extend` is asked when the time is over,
        with that time and the limit, and may give a later one."""
        return Watch(self, task, extend)

    def enter(self, watch: "Watch") -> None:
        if self.limit is None and self._until is None:
            return
        loop = asyncio.get_running_loop()
        due = float("inf") if self.limit is None else loop.time() + self.limit
        watch.due = due if self._until is None else min(due, self._until)
        self._open[watch] = None
        if self._timer is None:
            self._timer = loop.call_at(watch.due, self._check, loop)

    def leave(self, watch: "Watch") -> None:
        self._open.pop(watch, None)
        if watch.timer is not None:
            watch.timer.cancel()
        if not self._open and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        for watch in list(self._open):
            if watch.due > loop.time():
                self._timer = loop.call_at(watch.due, self._check, loop)
                return
            del self._open[watch]
            self._end(watch, loop)

    def _end(self, watch: "Watch", loop: asyncio.AbstractEventLoop) -> None:
        later = None if watch.extend is None or self.limit is None else watch.extend(watch.due, self.limit)
        if later is None or later <= loop.time():
            watch.expire()
        else:  # with a timer of its own: the others are due in the order in which they entered
            watch.timer = loop.call_at(later, self._end, watch, loop)


class Watch:
    """One stay inside a limit."""

    __slots__ = ("_cancelling", "_deadlines", "_task", "due", "expired", "extend", "timer")

    def __init__(self, deadlines: Deadlines, task: "asyncio.Task[Any]", extend: Extend | None = None) -> None:
        self._deadlines = deadlines
        self._task = task
        self.due = 0.0
        self.extend = extend
        self.timer: asyncio.TimerHandle | None = None
        self.expired = False

    def __enter__(self) -> Self:
        self._cancelling = self._task.cancelling()
        self._deadlines.enter(self)
        return self

    def expire(self) -> None:
        self.expired = True
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._deadlines.leave(self)
        # Whoever else cancelled the task meanwhile is not robbed of it: then this is no timeout but their cancellation.
        if self.expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error
