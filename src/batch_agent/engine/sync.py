"""Synchronous entry point: runs a coroutine to completion, even where an event loop is already running."""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, TypeVar

from ..aio import run_event_loop

_CANCELLATION_CHECK_INTERVAL = 0.2

_Result = TypeVar("_Result")
Main = Callable[[], Coroutine[Any, Any, _Result]]


def run_blocking(main: Main[_Result]) -> _Result:
    """The result of `main`. Inside a running event loop (a notebook) it runs in a thread of its own, and blocks that
    loop.

    Ctrl-C cancels the coroutine, and is raised when it has ended."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run_event_loop(main())
    return _run_in_thread(main)


def _run_in_thread(main: Main[_Result]) -> _Result:
    caller = asyncio.current_task()
    outcome: Future[_Result] = Future()
    cancels: list[Callable[[], object]] = []

    async def stoppable() -> _Result:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        cancels.append(lambda: loop.call_soon_threadsafe(task.cancel))
        return await main()

    def work() -> None:
        try:
            outcome.set_result(run_event_loop(stoppable()))
        except BaseException as error:  # noqa: BLE001 - carried over to the caller's thread
            outcome.set_exception(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), name="batch-agent-run")
    thread.start()
    try:
        # Ctrl-C interrupts the wait; under asyncio.run it only cancels the waiting task, which has to be checked.
        while not wait([outcome], timeout=_CANCELLATION_CHECK_INTERVAL).done:
            if caller is not None and caller.cancelling():
                raise asyncio.CancelledError
        return outcome.result()
    finally:
        with suppress(RuntimeError):  # its loop may be closed already
            for cancel in cancels:
                cancel()
        thread.join()
