"""Virtual time: an event loop whose clock jumps from timer to timer, for forecasts and for tests."""

import asyncio
import selectors
import socket
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_MAX_REAL_WAIT = 20.0
"""Seconds of real time to wait for a thread or a socket when no timer is set."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Event loop whose clock starts at 0 and jumps to the next timer as soon as no task is ready: an hour of sleep
    passes at once, in a deterministic order. Threads and sockets still take real time, during which timers fire."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    async def getaddrinfo(self, *address: Any, **hints: Any) -> Any:
        """Blocks: if a thread looked the address up, the timeout for it would pass at once."""
        return socket.getaddrinfo(*address, **hints)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Waits for the threads however long they take: the timeout that a runner sets would pass at once."""
        await super().shutdown_default_executor()


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is not None:
            self.now += max(0.0, timeout)
            return ready
        ready = super().select(_MAX_REAL_WAIT)
        if not ready:
            raise RuntimeError("Deadlock: every task waits, no timer is set, and no thread or socket became ready.")
        return ready


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on a loop with virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
