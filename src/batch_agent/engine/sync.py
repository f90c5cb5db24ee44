"""Synchronous entry points, which also work inside a running event loop: a call that blocks until a coroutine ends, and
an iterator over a stream."""

import asyncio
import contextvars
import logging
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Generic, Self, TypeVar

from ..aio import is_failure, run_event_loop
from ..core.errors import BatchAgentError, ErrorKind
from ..core.results import AgentResult, T
from ..core.run_failure import RunStopped
from ..core.run_reports import Scheduling
from .result_stream import ResultStream

_CANCELLATION_CHECK_INTERVAL = 0.2
_HIDDEN_PACKAGES = frozenset({"batch_agent", "uvloop", *sys.stdlib_module_names})
"""Packages whose frames are not of the user's code."""

_log = logging.getLogger("batch_agent")
_Result = TypeVar("_Result")
Main = Callable[[], Coroutine[Any, Any, _Result]]


def run_blocking(main: Main[_Result]) -> _Result:
    """Runs `main` to its end and returns its result. Inside a running event loop (a notebook) it uses a thread of its
    own, and blocks that loop.

    Ctrl-C cancels the coroutine, and is raised when it has ended, with the message of its CancelledError. Errors of
    this library and Ctrl-C are raised as one exception, without the frames of the library and of asyncio: the log has
    them, at level DEBUG."""
    failure: BatchAgentError | KeyboardInterrupt
    try:
        return _run_in_thread(main) if _is_in_event_loop() else run_event_loop(main())
    except BatchAgentError as error:
        _log.debug("The run failed", exc_info=True)
        failure = _without_internals(error)
    except KeyboardInterrupt as error:
        failure = KeyboardInterrupt(*(error.args or _cancellation_message(error.__context__)))
    # Outside of the `except` blocks, so that its context is only what the caller handles.
    raise failure


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _without_internals(error: BatchAgentError) -> BatchAgentError:
    """The error with only the frames of the user's code. Causes are dropped, because the message includes them, except
    the exception of the user's iterator."""
    cause = error.__cause__
    is_of_inputs = isinstance(error, RunStopped) and error.kind is ErrorKind.INPUTS
    if cause is None or isinstance(cause, BatchAgentError) or not is_of_inputs:
        error.__cause__, error.__context__, error.__suppress_context__ = None, None, False
    else:
        cause.__traceback__ = _user_frames(cause.__traceback__)
    return error.with_traceback(_user_frames(error.__traceback__))


def _user_frames(trace: TracebackType | None) -> TracebackType | None:
    if trace is None:
        return None
    rest, frame = _user_frames(trace.tb_next), trace.tb_frame
    return TracebackType(rest, frame, trace.tb_lasti, trace.tb_lineno) if is_user_frame(frame) else rest


def is_user_frame(frame: FrameType) -> bool:
    """Whether a frame belongs to the user's code or one of its libraries, not to this package or asyncio."""
    module: str = frame.f_globals.get("__name__", "batch_agent")  # generated methods have no module
    return module.partition(".")[0] not in _HIDDEN_PACKAGES


def _cancellation_message(error: BaseException | None) -> tuple[Any, ...]:
    """Arguments of the CancelledError with which an interrupted coroutine ended; none if it ended in another way."""
    return error.args if isinstance(error, asyncio.CancelledError) else ()


def _run_in_thread(main: Main[_Result]) -> _Result:
    caller = asyncio.current_task()
    outcomes: SimpleQueue[Future[_Result]] = SimpleQueue()  # of a Future, Ctrl-C may leave the lock taken
    cancels: list[Callable[[], object]] = []
    is_stopped = False

    async def stoppable() -> _Result:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        cancels.append(lambda: loop.call_soon_threadsafe(task.cancel))
        if is_stopped:  # before it could be cancelled
            raise asyncio.CancelledError
        return await main()

    def work() -> None:
        outcome: Future[_Result] = Future()
        try:
            outcome.set_result(run_event_loop(stoppable()))
        except BaseException as error:  # noqa: BLE001 - carried over to the caller's thread
            outcome.set_exception(error)
        outcomes.put(outcome)

    def stop() -> tuple[Any, ...]:
        """Cancels the coroutine and waits for its end. Arguments of its CancelledError, if that is how it ended."""
        nonlocal is_stopped
        is_stopped = True
        with suppress(RuntimeError):  # its loop may be closed already
            for cancel in cancels:
                cancel()
        if not thread.is_alive():  # it has ended, or ends as soon as it starts
            return ()
        thread.join()
        return _cancellation_message(outcomes.get().exception())

    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), name="batch-agent-run")
    try:
        thread.start()
        # Ctrl-C interrupts the wait; under asyncio.run it only cancels the waiting task, which has to be checked.
        while True:
            with suppress(Empty):
                outcome = outcomes.get(timeout=_CANCELLATION_CHECK_INTERVAL)
                break
            if caller is not None and caller.cancelling():
                raise asyncio.CancelledError(*stop())
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(*stop()) from interrupt
    thread.join()
    return outcome.result()


class SyncResultStream(Iterator[AgentResult[T]]):
    """`for result in stream`: the results of a run as its agents finish, for code without an event loop. The run has a
    thread of its own, which starts with the first result that is asked for.

    Leaving the loop, by break or by an exception such as Ctrl-C, cancels the run and waits for its end; so do `close`
    and the end of a `with` block."""

    def __init__(self, stream: ResultStream[T]) -> None:
        self._stream = stream
        self._loop: _StreamLoop[T] | None = None
        """The thread refers to this object and not to the stream, so that a dropped stream is collected and closed."""
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> AgentResult[T]:
        if self._is_closed:
            raise StopIteration
        try:
            self._loop = self._loop or _StreamLoop(self._stream)
            found = self._loop.next()
        except BaseException:
            self.close()
            raise
        if found is None:
            self.close()
            raise StopIteration
        return found

    @property
    def scheduling(self) -> Scheduling:
        """How the run was scheduled; complete once the run has ended."""
        return self._stream.scheduling

    def close(self) -> None:
        """Cancels the run if it has not ended, and waits for its end."""
        self._is_closed = True
        if self._loop is not None:
            self._loop.close()

    def __del__(self) -> None:
        self.close()


class _StreamLoop(Generic[T]):
    """Event loop of a stream, in a thread. Ctrl-C may interrupt its methods anywhere, while the thread starts too;
    `close` ends the run all the same."""

    def __init__(self, stream: ResultStream[T]) -> None:
        self._stream = stream
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        self._closed, self._asked = asyncio.Event(), asyncio.Event()
        self._answers: SimpleQueue[AgentResult[T] | BaseException | None] = SimpleQueue()
        """Not a Future: Ctrl-C may leave its lock taken, and the thread would wait for it forever."""
        work = partial(contextvars.copy_context().run, self._work)
        self._thread = threading.Thread(target=work, name="batch-agent-run", daemon=True)

    def next(self) -> AgentResult[T] | None:
        """The next result; None at the end. The thread starts with the first call."""
        if self._loop is None:
            self._thread.start()
        else:
            self._loop.call_soon_threadsafe(self._asked.set)
        answer = self._answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self) -> None:
        self._is_closed = True  # a thread that starts only now ends at once
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed already
                self._loop.call_soon_threadsafe(self._closed.set)
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        try:
            run_event_loop(self._serve())
        except BaseException as error:  # noqa: BLE001 - carried over to the caller's thread
            self._answers.put(error)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self._is_closed:
            return
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(self._read())
            await self._closed.wait()
            await self._stream.aclose()
            reader.cancel()

    async def _read(self) -> None:
        """Reads a result for each call of `next`."""
        while True:
            self._asked.clear()
            try:
                self._answers.put(await anext(self._stream, None))
            except BaseException as error:  # carried over to the caller's thread
                if not is_failure(error):
                    raise
                self._answers.put(error)
            await self._asked.wait()
