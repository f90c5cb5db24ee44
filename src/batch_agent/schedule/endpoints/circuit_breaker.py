"""Circuit breaker per endpoint with a half-open probe. Time is an argument."""

from dataclasses import dataclass

from ..retry import Backoff

_MAX_FAULTS = 2
"""Consecutive faults that open the circuit. A single fault may be caused by its prompt or a broken connection; two
without an answer in between are not."""
_MAX_TRANSIENT_FAULTS = 4
"""Consecutive faults of the kind that a healthy endpoint may show too. Rare even if a fifth of all requests fail at
random."""
_EJECTION = Backoff(first=1.0, ceiling=60.0)
"""First: long enough for a network to recover, short enough to lose little work after a false alarm. Ceiling: an engine
that restarts loads its weights for a minute or more; if it were probed less often, it would then idle as long."""
_ANSWERS_TO_FORGET = 16
"""Answers after which earlier ejections of a recovered endpoint are forgotten. Before that, each ejection lasts longer
than the previous one, so that an unstable endpoint is used less and less."""


@dataclass(slots=True)
class CircuitBreaker:
    """Closed (healthy), open (ejected for a time), or half-open: one request, the probe, finds out whether the endpoint
    has recovered. Requests have increasing numbers: the outcome of a request sent before an ejection is ignored."""

    _faults: int = 0
    _ejections: int = 0
    _answers: int = 0
    """Answers since the circuit was last closed."""
    _until: float | None = None
    _probe: int | None = None
    _newest_stale: int = 0
    """Newest request at the last ejection."""

    @property
    def is_closed(self) -> bool:
        return self._until is None

    @property
    def is_clean(self) -> bool:
        """Whether it remembers no fault, so that an answer changes nothing."""
        return self._until is None and not (self._faults or self._ejections)

    def allows(self, now: float) -> bool:
        return self._until is None or (self._probe is None and now >= self._until)

    def on_sent(self, request: int) -> None:
        """May be left out while the circuit is closed."""
        if self._until is not None and self._probe is None:
            self._probe = request

    def on_answer(self, request: int) -> None:
        """The endpoint answered the request, with a reply or an error that is not its fault. May be left out while the
        breaker is clean."""
        if request <= self._newest_stale:
            return
        if request == self._probe:
            self._until = self._probe = None
            self._answers = 0
        if self._until is None:
            self._faults = 0
            self._answers += 1
            if self._answers >= _ANSWERS_TO_FORGET:
                self._ejections = 0

    def on_failure(
        self, request: int, now: float, newest: int, *, is_refused: bool, other_requests: int | None = None
    ) -> None:
        """`newest`: the last request that was sent. `is_refused`: the connection was refused, which opens the circuit
        at once. `other_requests`: for a fault that a healthy endpoint shows occasionally, the number of other requests
        in flight there. Errors arrive sooner than answers, so up to half of those may fail consecutively by chance."""
        if request <= self._newest_stale:
            return
        self._faults += 1
        needed = (
            1 if is_refused else _MAX_FAULTS if other_requests is None else _MAX_TRANSIENT_FAULTS + other_requests // 2
        )
        if request == self._probe or (self._until is None and self._faults >= needed):
            self._eject(now, newest)

    def on_abandoned(self, request: int) -> None:
        """The caller abandoned the request, which says nothing about the endpoint."""
        if request == self._probe:
            self._probe = None

    def _eject(self, now: float, newest: int) -> None:
        self._until = now + _EJECTION.delay(self._ejections)
        self._ejections += 1
        self._faults = 0
        self._probe = None
        self._newest_stale = newest
