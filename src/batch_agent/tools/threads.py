"""Daemon threads for blocking tools. A hung tool keeps its thread, but blocks neither the event loop nor the exit."""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from ..forked_child import ForkGuard
from .result_text import PlainToolError, describe_error

_log = logging.getLogger("batch_agent")


class DaemonThreads:
    """Thread pool whose threads end with the program, unlike those of concurrent.futures. A holder of `slots` has a
    thread; releasing the slot gives up on a thread that hangs, and the next holder gets a new one."""

    def __init__(self, max_threads: int = 64) -> None:
        self.slots = asyncio.Semaphore(max_threads)
        self._max_threads = max_threads
        self._idle = 0
        self._busy = 0
        self._closed = False
        self._lock = threading.Lock()
        self._work: SimpleQueue[Callable[[], Callable[[], object]] | None] = SimpleQueue()

    async def run(self, function: Callable[[], Any], on_end: Callable[[], None] | None = None) -> Any:
        """Calls `function` in a thread. If the caller is cancelled, the thread finishes by itself; `on_end` is called
        on the loop when it has."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def settle(result: Any, error: BaseException | None) -> None:
            if on_end is not None:
                on_end()
            if done.done():
                return
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)
                done.exception()  # mark as retrieved: the caller may be cancelled by now

        def work() -> Callable[[], object]:
            result, error = None, None
            try:
                with ForkGuard():
                    result = context.run(function)
            except BaseException as raised:  # noqa: BLE001 - carried over to the caller
                error = _for_future(raised)
            return lambda: loop.call_soon_threadsafe(settle, result, error)

        self._submit(work)
        return await done

    def close(self) -> None:
        """Ends idle threads. Busy ones end after their work, which is logged: a thread cannot be stopped."""
        with self._lock:
            self._closed = True
            if self._busy:
                calls = "1 tool call is" if self._busy == 1 else f"{self._busy} tool calls are"
                _log.warning("%s still running: a function in a thread cannot be stopped, and ends by itself.", calls)
            for _ in range(self._idle):
                self._work.put(None)
            self._idle = 0

    def _submit(self, work: Callable[[], Callable[[], object]]) -> None:
        with self._lock:
            self._busy += 1
            if self._idle > 0:
                self._idle -= 1
            else:
                threading.Thread(target=self._serve, name="batch-agent-tool", daemon=True).start()
        self._work.put(work)

    def _serve(self) -> None:
        stays = True
        while stays and (work := self._work.get()) is not None:
            notify = work()
            with self._lock:
                self._busy -= 1
                # idle before the caller gets the result, or its next call would start another thread
                stays = not self._closed and self._idle < self._max_threads
                self._idle += stays
            with suppress(RuntimeError):  # the loop may be closed by now
                notify()
            del work, notify  # an idle thread holds no result


def _for_future(error: BaseException) -> BaseException:
    """An exception that a future accepts: not StopIteration. In a thread, an exception that would end the program or a
    coroutine is an ordinary failure."""
    if isinstance(error, StopIteration):
        return RuntimeError("StopIteration")
    is_plain = isinstance(error, Exception | asyncio.CancelledError)
    return error if is_plain else PlainToolError(describe_error(error))
