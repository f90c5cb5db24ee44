"""Additions to asyncio: the clock of the running loop, and one exception instead of a group.

Telling our own cancellation from one that leaked out of somebody else's code.

One time limit for many tasks, with one timer for all of them: a timer each costs more than the rest of a turn.

Deadline of a run: one moment at which everything that it waits for ends.

A loop for a coroutine: the quickest that is installed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

from .core.errors import BackendError, ErrorKind
from .core.run_failure import RunStopped


def now() -> float:
    """Seconds on the clock of the running loop: the clock of timers, timeouts and virtual time."""
    return asyncio.get_running_loop().time()


def unwrap_group(error: BaseException, *most_important: type[BaseException]) -> BaseException:
    """The exception that explains a failed task group: the first one, since the others follow from it as a rule. Given
    `most_important`, the first exception of these classes goes before others, in the order of the classes. An exception
    that is not a group is returned as it is."""
    while isinstance(error, BaseExceptionGroup):
        exceptions = error.exceptions
        ranked = (each for kind in most_important for each in exceptions if isinstance(each, kind))
        error = next(ranked, exceptions[0])
    return error


def ungrouped() -> AbstractContextManager[None]:
    """`with ungrouped(): ...` raises the first exception of a group instead of the group."""
    return _UNGROUPED


class _Ungrouped:
    """Has no state: one instance serves all blocks, nested ones too."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, BaseExceptionGroup):
            raise unwrap_group(error) from None


_UNGROUPED = _Ungrouped()


def is_being_cancelled() -> bool:
    """Whether the running task was told to stop. If not, a CancelledError is only a failure: a callback or a backend
    awaited something that was cancelled, and no result may be lost for it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def is_failure(error: BaseException) -> bool:
    """Whether what a user's code raised is a failure of that code, whatever its class: libraries raise exceptions of
    their own that are no Exception. It is not for Ctrl-C, for the cancellation of the running task, or for a coroutine
    that is closed because its loop is gone."""
    if isinstance(error, KeyboardInterrupt):
        return False
    if isinstance(error, GeneratorExit):
        return _has_task()
    return not (isinstance(error, asyncio.CancelledError) and is_being_cancelled())


def _has_task() -> bool:
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


Extend = Callable[[float, float], float | None]


class Deadlines:
    """`with deadlines.watch(task): ...` gives what is inside `limit` seconds (None: for ever), then cancels it and
    raises TimeoutError, as asyncio.timeout does. The limit is the same for all: who entered first is due first."""

    def __init__(self, limit: float | None, until: float | None = None) -> None:
        """`until`: a time of the loop's clock, at which all end whatever the limit."""
        self.limit = limit
        self._until = until
        self._open: dict[DeadlineWatch, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, task: "asyncio.Task[Any]", extend: Extend | None = None) -> "DeadlineWatch":
        """`task` is the running one: asking for it costs more than the rest. `extend` is asked when the time is over,
        with that time and the limit, and may give a later one."""
        return DeadlineWatch(self, task, extend)

    def enter(self, watch: "DeadlineWatch") -> None:
        if self.limit is None and self._until is None:
            return
        loop = asyncio.get_running_loop()
        due = float("inf") if self.limit is None else loop.time() + self.limit
        watch.due = due if self._until is None else min(due, self._until)
        self._open[watch] = None
        if self._timer is None:
            self._timer = loop.call_at(watch.due, self._check, loop)

    def leave(self, watch: "DeadlineWatch") -> None:
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

    def _end(self, watch: "DeadlineWatch", loop: asyncio.AbstractEventLoop) -> None:
        later = None if watch.extend is None or self.limit is None else watch.extend(watch.due, self.limit)
        if later is None or later <= loop.time():
            watch.expire()
        else:  # with a timer of its own: the others are due in the order in which they entered
            watch.timer = loop.call_at(later, self._end, watch, loop)


class DeadlineWatch:
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


class RunDeadline:
    """Counts from when it is made."""

    def __init__(self, seconds: float | None) -> None:
        """None: for ever."""
        self._seconds = seconds
        self.at = None if seconds is None else asyncio.get_running_loop().time() + seconds
        """On the loop's clock."""

    @property
    def has_passed(self) -> bool:
        return self.at is not None and asyncio.get_running_loop().time() >= self.at

    @property
    def error(self) -> BackendError:
        """What fails because of it."""
        return BackendError(ErrorKind.BUDGET, f"The run's deadline of {self._seconds:g} s has passed.")

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """Ends what is inside at the deadline. Raises BackendError then."""
        if self.at is None:
            yield
            return
        clock = asyncio.timeout_at(self.at)
        try:
            async with clock:
                yield
        except TimeoutError as error:
            if not clock.expired():
                raise
            raise self.error from error


@contextmanager
def startup_deadline(deadline: RunDeadline) -> Iterator[None]:
    """Raises RunStopped where the deadline comes before the run can begin."""
    try:
        yield
    except BackendError as error:
        if error.kind is not ErrorKind.BUDGET or not deadline.has_passed:
            raise
        message = f"{error} Its inputs, its backend or its tools were not ready by then."
        raise RunStopped(error.kind, message) from error


T = TypeVar("T")


def run_event_loop(main: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, on uvloop where that is there (extra `speed`)."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        new_event_loop = None
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
