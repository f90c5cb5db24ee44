"""Threads for tools that block. A hung tool keeps its thread, but neither the event loop nor the end of the program."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class DaemonThreads:
    """A pool whose threads do not outlive the program, unlike those of concurrent.futures."""

    def __init__(self, most: int = 64) -> None:
        self._most = most
        self._count = 0
        self._idle = 0
        self._lock = threading.Lock()
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    async def run(self, function: Callable[..., Any], **kwargs: Any) -> Any:
        """Calls `function` in a thread. Cancelling the caller leaves the thread to finish by itself."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def settle(result: Any, error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)

        def work() -> None:
            result, error = None, None
            try:
                result = context.run(function, **kwargs)
            except BaseException as raised:  # noqa: BLE001 - carried over to the caller
                error = RuntimeError("StopIteration") if isinstance(raised, StopIteration) else raised
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, result, error)

        self._submit(work)
        return await done

    def close(self) -> None:
        """Lets idle threads end; busy ones end after their work."""
        with self._lock:
            for _ in range(self._count):
                self._work.put(None)

    def _submit(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            elif self._count < self._most:
                self._count += 1
                threading.Thread(target=self._serve, name=f"batch-agent-tool-{self._count}", daemon=True).start()
        self._work.put(work)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            with self._lock:
                self._idle += 1
