"""Calls of tools that one worker makes for all."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class _Call:
    worker: str
    outcome: bytes | None = None
    expires: float = 0.0


class CallsMade:
    """Who makes which call, and what came of it. Time is an argument."""

    def __init__(self) -> None:
        self._calls: dict[str, _Call] = {}

    def claim(self, name: str, worker: str, now: float, is_alive: Callable[[str], bool]) -> bytes | bool:
        """As `Hub.claim`."""
        call = self._calls.get(name)
        if call is not None:
            if call.outcome is not None and call.expires > now:
                return call.outcome
            if call.outcome is None and call.worker != worker and is_alive(call.worker):
                return False
        self._calls[name] = _Call(worker)
        return True

    def land(self, name: str, worker: str, outcome: bytes | None, expires: float) -> bool:
        """Whether it was this worker's to say."""
        call = self._calls.get(name)
        if call is None or call.worker != worker or call.outcome is not None:
            return False
        if outcome is None:
            del self._calls[name]
        else:
            call.outcome, call.expires = outcome, expires
        return True
