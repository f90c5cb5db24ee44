"""What a request costs before the engine sees it."""

from collections.abc import Callable
from typing import Protocol

from .config import SimConfig
from .http import Connection


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """The part of an event loop that is needed here."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], None], /) -> Timer: ...


class FrontEnd:
    """Spends the overhead of requests on one after the other, as vLLM's one API process does, without using CPU."""

    def __init__(self, config: SimConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._has_overhead = config.front_end_seconds(1) > 0
        self._free_at = 0.0

    def take(self, prompts: int, connection: Connection, then: Callable[[], None]) -> None:
        """Call `then` when this request's overhead is spent: at once if there is none, never if the client leaves."""
        if not self._has_overhead:
            then()
            return
        self._free_at = max(self._free_at, self._clock.time()) + self._config.front_end_seconds(prompts)
        connection.on_gone = self._clock.call_at(self._free_at, then).cancel
