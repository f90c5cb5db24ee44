"""Whether one endpoint of several may be given work: told from its own faults. Time is an argument."""

from dataclasses import dataclass

from .backoff import Backoff

_FAULTS = 2
"""In a row. One may be its prompt's doing, or a connection that broke; two with nothing answered in between are not."""
_PASSING_FAULTS = 4
"""In a row, of those that a good endpoint may show too: where a fifth of all requests fail at random, that is rare."""
_EJECTION = Backoff(first=1.0, longest=60.0)
"""First: long enough for a dropped network to be back, short enough to lose little work if it was nothing. Longest: an
engine that starts again loads its weights for a minute or more, and would idle for as long if it were asked less
often."""
_FORGIVEN = 16
"""Answers after which an endpoint that came back is as good as one that was never gone. Before that, the next ejection
lasts longer than the last one: who comes and goes is asked less and less."""


@dataclass(slots=True)
class CircuitBreaker:
    """Good, or ejected until some time; after that one request, the probe, finds out. Requests are told apart by their
    numbers, which rise: what was sent before an ejection says nothing about the time after it."""

    _faults: int = 0
    _ejections: int = 0
    _answers: int = 0
    """Since it came back."""
    _until: float | None = None
    _probe: int | None = None
    _newest: int = 0
    _stale: int = 0
    """The newest request at the last ejection."""

    @property
    def is_good(self) -> bool:
        return self._until is None

    def admits(self, now: float) -> bool:
        return self._until is None or (self._probe is None and now >= self._until)

    def sent(self, request: int) -> None:
        self._newest = request
        if self._until is not None and self._probe is None:
            self._probe = request

    def answered(self, request: int) -> None:
        """It has read the request, whatever it said."""
        if request <= self._stale:
            return
        if request == self._probe:
            self._until = self._probe = None
            self._answers = 0
        if self._until is None:
            self._faults = 0
            self._answers += 1
            if self._answers >= _FORGIVEN:
                self._ejections = 0

    def faulted(self, request: int, now: float, *, is_refused: bool, beside: int | None = None) -> None:
        """`is_refused`: nobody took the connection, which needs no second sign. `beside`: of a fault that a good
        endpoint shows now and then, how many other requests are under way there. Errors come sooner than answers, so
        as many as half of those may follow each other by chance."""
        if request <= self._stale:
            return
        self._faults += 1
        needed = 1 if is_refused else _FAULTS if beside is None else _PASSING_FAULTS + beside // 2
        if request == self._probe or (self._until is None and self._faults >= needed):
            self._eject(now)

    def left(self, request: int) -> None:
        """Nobody waits for it any more, and nothing was learned."""
        if request == self._probe:
            self._probe = None

    def _eject(self, now: float) -> None:
        self._until = now + _EJECTION.delay(self._ejections)
        self._ejections += 1
        self._faults = 0
        self._probe = None
        self._stale = self._newest
