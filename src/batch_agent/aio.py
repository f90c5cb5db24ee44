"""Additions to asyncio: the loop's clock, exception groups, cancellation, deadlines, and the event loop of a run."""

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator
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
    """Stateless context manager: one instance serves all blocks, nested ones too."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, BaseExceptionGroup):
            first = unwrap_group(error)
            raise first from first.__cause__  # without the group as its context


_UNGROUPED = _Ungrouped()


def is_being_cancelled() -> bool:
    """Whether the running task is being cancelled. If not, a CancelledError is a failure of a callback or a backend
    that awaited something cancelled, and must not lose a result."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def is_failure(error: BaseException) -> bool:
    """Whether an exception from user code is a failure of that code, whatever its class: some libraries raise
    exceptions that do not derive from Exception. False for Ctrl-C, for the cancellation of the running task, and for
    a coroutine that is closed because its loop has ended."""
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


_NEVER = float("inf")

Extend = Callable[[float, float], float | None]
"""Takes the due time and the limit; returns a later due time, or None."""


class Deadlines:
    """Time limit that many tasks share, with one timer for all: a timer for each costs more than the rest of a turn.

    `with deadlines.watch(task): ...` allows its block `limit` seconds (None: no limit), then cancels it and raises
    TimeoutError, as asyncio.timeout does. All blocks have the same limit, so they are due in the order of entry."""

    def __init__(self, limit: float | None, until: float | None = None) -> None:
        """`until`: a time on the loop's clock at which all blocks end, whatever the limit."""
        self.limit = limit
        self._until = until
        self._open: dict[DeadlineWatch, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._held_at: float | None = None

    def watch(self, task: "asyncio.Task[Any]", extend: Extend | None = None) -> "DeadlineWatch":
        """Context manager for one block. `task` is the running task, passed because looking it up costs more than the
        rest. `extend` is called at the due time, and may return a later one."""
        return DeadlineWatch(self, task, extend)

    def set_until(self, until: float | None) -> None:
        """Moves the time at which all blocks end, those that are open included. None: there is none."""
        self._until = until
        self._arm()

    def hold(self) -> None:
        """Stops the clock of the limit. That of `until` goes on."""
        if self._held_at is None:
            self._held_at = now()
            self._arm()

    def go_on(self) -> None:
        """Lets the clock of the limit go on: open blocks have as much time left as when it stopped."""
        if self._held_at is not None:
            held, self._held_at = now() - self._held_at, None
            for watch in self._open:
                watch.limit_due += held
            self._arm()

    def _arm(self) -> None:
        """Sets the timer anew, after what blocks are due to has changed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for watch in self._open:
            due = _NEVER if self._held_at is not None else watch.limit_due
            watch.due = due if self._until is None else min(due, self._until)
        first = next(iter(self._open), None)
        if first is not None and first.due < _NEVER:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(first.due, self._check, loop)

    def enter(self, watch: "DeadlineWatch") -> None:
        if self.limit is None and self._until is None:
            self._open[watch] = None  # an end may be set later
            return
        loop = asyncio.get_running_loop()
        due = _NEVER if self.limit is None else loop.time() + self.limit
        watch.limit_due = due
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
                if watch.due < _NEVER:
                    self._timer = loop.call_at(watch.due, self._check, loop)
                return
            del self._open[watch]
            self._end(watch, loop)

    def _end(self, watch: "DeadlineWatch", loop: asyncio.AbstractEventLoop) -> None:
        later = None if watch.extend is None or self.limit is None else watch.extend(watch.due, self.limit)
        if later is None or later <= loop.time():
            watch.expire()
        else:  # with a timer of its own, since the others are due in the order of entry
            watch.timer = loop.call_at(later, self._end, watch, loop)


class DeadlineWatch:
    """One block under a time limit."""

    __slots__ = ("_cancelling", "_deadlines", "_task", "due", "expired", "extend", "limit_due", "timer")

    def __init__(self, deadlines: Deadlines, task: "asyncio.Task[Any]", extend: Extend | None = None) -> None:
        self._deadlines = deadlines
        self._task = task
        self.due = self.limit_due = _NEVER
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
        # If the task was also cancelled by other code, this is that cancellation and not a timeout.
        if self.expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error


class RunDeadline:
    """Deadline of a run, at which everything that it waits for ends. Its clock starts when it is created."""

    def __init__(self, seconds: float | None) -> None:
        """`seconds`: None for no deadline."""
        self._began = asyncio.get_running_loop().time()
        self.seconds = seconds
        self.at = None if seconds is None else self._began + seconds
        """Time of the deadline on the loop's clock."""
        self._blocks: dict[asyncio.Timeout, None] = {}
        """Blocks of `limit` that end at the deadline."""
        self._observers: list[Callable[[float | None], None]] = []

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return now() - self._began

    def set(self, seconds: float | None, time_left: float | None = None) -> None:
        """Moves the deadline. None: there is none. `time_left`: seconds from now, of a run that began elsewhere."""
        self.seconds, self.at = seconds, None if seconds is None else self._began + seconds
        if time_left is not None:
            self.at = asyncio.get_running_loop().time() + time_left
        for block in self._blocks:
            if not block.expired():
                block.reschedule(self.at)
        for observer in self._observers:
            observer(self.at)

    def observe(self, observer: Callable[[float | None], None]) -> None:
        """Registers an observer, which is called with the new time whenever the deadline moves."""
        self._observers.append(observer)

    @property
    def has_passed(self) -> bool:
        return self.at is not None and asyncio.get_running_loop().time() >= self.at

    @property
    def error(self) -> BackendError:
        """Error of what the deadline ends."""
        return BackendError(ErrorKind.BUDGET, f"The run's deadline of {self.seconds:g} s has passed.")

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """Ends the block at the deadline, with a BackendError."""
        if self.at is None:
            yield
            return
        clock = asyncio.timeout_at(self.at)
        try:
            async with clock:
                self._blocks[clock] = None
                try:
                    yield
                finally:
                    del self._blocks[clock]
        except TimeoutError as error:
            if not clock.expired():
                raise
            raise self.error from error


@contextmanager
def startup_deadline(deadline: RunDeadline) -> Iterator[None]:
    """Raises RunStopped if the deadline passes before the run has started."""
    try:
        yield
    except BackendError as error:
        if error.kind is not ErrorKind.BUDGET or not deadline.has_passed:
            raise
        message = f"{error} Its inputs, backend or tools were not ready by then."
        raise RunStopped(error.kind, message) from None


async def cancel_all(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancels tasks and waits until all have ended, however long they take."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(set(tasks))


async def exit_in_thread(
    context: AbstractContextManager[Any],
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None:
    """Exits a context in a thread: writing files takes a while and must not block the event loop. A second cancellation
    ends the wait, and not the exit: `asyncio.to_thread` would drop it if no thread was free yet."""
    loop, here = asyncio.get_running_loop(), contextvars.copy_context()
    await asyncio.shield(loop.run_in_executor(None, here.run, context.__exit__, kind, error, trace))


T = TypeVar("T")


def run_event_loop(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on uvloop if it is installed (extra `speed`)."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        new_event_loop = None
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
