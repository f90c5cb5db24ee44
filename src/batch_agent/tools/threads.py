"""Threads for tools that block. A hung tool keeps its thread, but neither the event loop nor the end of the program."""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from .result_text import PlainToolError, describe_error

_log = logging.getLogger("batch_agent")


class DaemonThreads:
    """Threads that do not outlive the program, unlike those of concurrent.futures. Whoever holds `room` has a thread;
    leaving it gives up on a thread that hangs, and the next one gets another."""

    def __init__(self, most: int = 64) -> None:
        self.room = asyncio.Semaphore(most)
        self._most = most
        self._idle = 0
        self._busy = 0
        self._closed = False
        self._lock = threading.Lock()
        self._work: SimpleQueue[Callable[[], Callable[[], object]] | None] = SimpleQueue()

    async def run(self, function: Callable[[], Any], ended: Callable[[], None] | None = None) -> Any:
        """Calls `function` in a thread. Cancelling the caller leaves the thread to finish by itself; `ended` is called
        on the loop when it has."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def settle(result: Any, error: BaseException | None) -> None:
            if ended is not None:
                ended()
            if done.done():
                return
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)
                done.exception()  # seen: whoever waited may be cancelled by now

        def work() -> Callable[[], object]:
            result, error = None, None
            try:
                result = context.run(function)
            except BaseException as raised:  # noqa: BLE001 - carried over to the caller
                error = _carried(raised)
            return lambda: loop.call_soon_threadsafe(settle, result, error)

        self._submit(work)
        return await done

    def close(self) -> None:
        """Lets idle threads end; busy ones end after their work, which is said: nobody can stop them."""
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
            tell = work()
            with self._lock:
                self._busy -= 1
                # idle before anybody hears of the result, or the next call would start another thread
                stays = not self._closed and self._idle < self._most
                self._idle += stays
            with suppress(RuntimeError):  # the loop may be closed by now
                tell()
            del work, tell  # an idle thread holds no result


def _carried(error: BaseException) -> BaseException:
    """A future takes no StopIteration. What ends a program or a coroutine is, in a thread, a failure like others."""
    if isinstance(error, StopIteration):
        return RuntimeError("StopIteration")
    is_plain = isinstance(error, Exception | asyncio.CancelledError)
    return error if is_plain else PlainToolError(describe_error(error))
