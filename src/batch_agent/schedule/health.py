"""Whether the backend as a whole is still of use, told from the failures of all agents.

One agent's failure is its own. Failures in a row, with no answer to anybody in between, are the backend's."""

from dataclasses import dataclass
from typing import Literal

from ..core.errors import BackendError, ErrorKind

_ROW = 3
_LONG_ROW = 10
_SHORTEST_HOLD = 0.5
_LONGEST_HOLD = 5.0

Trouble = Literal["gone", "refused", "silent"]
_TROUBLES: dict[ErrorKind, Trouble] = {
    ErrorKind.UNAVAILABLE: "gone",
    ErrorKind.AUTH: "refused",
    ErrorKind.NOT_FOUND: "refused",
    ErrorKind.TLS: "refused",
    ErrorKind.TURN_TIMEOUT: "silent",
}


@dataclass(frozen=True, slots=True)
class Alone:
    """The failure concerns only the agent that met it."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Nobody is sent for so many seconds, and the try does not count."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Stop:
    """No agent can go on."""

    reason: str


Verdict = Alone | Hold | Stop
_ALONE = Alone()


class Health:
    """`patience`: seconds for which a backend that is gone is waited for."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._has_answered = False
        self._trouble: Trouble | None = None
        self._row = 0
        self._since = 0.0

    def succeeded(self) -> None:
        self._has_answered = True
        self._trouble = None

    def failed(self, error: BackendError, now: float, inflight: int) -> Verdict:
        """`inflight`: how many requests may be under way, and so may fail for the same reason."""
        trouble = _TROUBLES.get(error.kind)
        if trouble is None:  # it answers, if only with an error
            self._trouble = None
            return _ALONE
        if trouble != self._trouble:
            self._trouble, self._row, self._since = trouble, 0, now
        self._row += 1
        match trouble:
            case "gone":
                return self._gone(error, now)
            case "refused":
                return self._refused(error)
            case "silent":
                return self._silent(error, inflight)

    def _gone(self, error: BackendError, now: float) -> Verdict:
        lasted = now - self._since
        if self._row >= _ROW and lasted >= self._patience:
            return Stop(f"The backend is gone: nothing was answered for {lasted:.0f} s. {error}")
        if error.retry_after is not None and error.retry_after <= self._patience:
            return Hold(max(error.retry_after, _SHORTEST_HOLD))
        if self._row < _ROW:
            return _ALONE
        return Hold(min(_LONGEST_HOLD, max(_SHORTEST_HOLD, lasted / 2)))

    def _refused(self, error: BackendError) -> Verdict:
        is_certain = not self._has_answered and (error.status == 401 or error.kind is ErrorKind.TLS)
        if is_certain or self._row >= _ROW:
            return Stop(f"The backend refuses every request. {error}")
        return _ALONE

    def _silent(self, error: BackendError, inflight: int) -> Verdict:
        if self._row >= max(_LONG_ROW, 2 * inflight):
            return Stop(f"The backend hangs: {self._row} requests in a row were not answered. {error}")
        return _ALONE
