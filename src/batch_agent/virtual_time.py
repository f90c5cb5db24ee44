"""Virtual time: an event loop whose clock jumps from timer to timer, for forecasts and for tests."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_LONGEST_WAIT = 20.0
"""Seconds of real time for a thread or a socket, where no timer is set."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Event loop whose clock starts at 0 and jumps to the next timer as soon as nothing else is left to do: an hour of
    sleeping passes at once, in the same order every time. Threads and sockets still take real time, during which timers
    fire."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


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
        ready = super().select(_LONGEST_WAIT)
        if not ready:
            raise RuntimeError("Every task waits for another one: no timer is set, and no thread or socket woke any.")
        return ready


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
