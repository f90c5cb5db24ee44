"""Whether the backend as a whole is still of use, told from the failures of all agents.

One agent's failure is its own, and so are those of a few prompts that a server cannot bear. Failures are the backend's
when several agents meet them, nobody is answered in between, and nobody who was sent before them still waits for an
answer: refusals come quicker than answers, so at first they are all that is heard.

How the last requests went: whether trouble is one request's own, or everybody's.
"""

from ..core.errors import BackendError, ErrorKind
from ..core.fast_dataclass import dataclass

_REMEMBERED = 40
"""Requests. Few, so that a server which begins to refuse is believed soon; more than a spell of bad luck lasts."""
_SOME = 3
"""Fewer that went wrong show nothing: one of one is all of them."""


@dataclass(slots=True)
class Outcomes:
    """Counts what went well and what went wrong, and forgets."""

    _good: float = 0.0
    _bad: float = 0.0

    def went_well(self) -> None:
        self._good += 1
        self._forget()

    def went_wrong(self) -> None:
        self._bad += 1
        self._forget()

    @property
    def share_of_trouble(self) -> float:
        return self._bad / (self._bad + self._good) if self._bad >= _SOME else 0.0

    def _forget(self) -> None:
        if self._good + self._bad > _REMEMBERED:
            self._good /= 2
            self._bad /= 2


_SURE = 3
"""Agents that find nobody there."""
_REFUSED = 10
_BROKEN = 20
"""Agents, for troubles that their prompts may also have brought about."""
_ROUNDS = 2
"""Rounds of requests that nobody answers in time."""
_SHORTEST_HOLD = 0.5
_LONGEST_HOLD = 5.0
_BUSY_PATIENCE, _LESS_PATIENCE = 10, 3
_MUCH_TROUBLE = 0.3
_RETRIES = 16
"""Over which it is averaged whether another try helps."""

_REFUSALS = frozenset({ErrorKind.AUTH, ErrorKind.NOT_FOUND, ErrorKind.TLS})
_BREAKDOWNS = {
    ErrorKind.UNAVAILABLE: "is gone",
    ErrorKind.CONNECTION: "breaks every connection",
    ErrorKind.SERVER: "fails at everything",
    ErrorKind.TURN_TIMEOUT: "hangs",
}


@dataclass(frozen=True, slots=True)
class RetryAgent:
    """The failure concerns only the agent that met it, which may try `patience` times as often as usual."""

    patience: int = 1
    is_lone: bool = False
    """Most others are answered: it may be sent again soon."""


@dataclass(frozen=True, slots=True)
class PauseAll:
    """Nobody is sent for so many seconds, then one to see; the try does not count."""

    seconds: float


@dataclass(frozen=True, slots=True)
class StopRun:
    """No agent can go on."""

    reason: str


Verdict = RetryAgent | PauseAll | StopRun
_ALONE = RetryAgent()
_PASSING = frozenset({ErrorKind.SERVER, ErrorKind.CONNECTION})
"""What may be the bad luck of a moment, and costs little to try again."""


class Health:
    """`patience`: seconds for which a backend that is gone is waited for."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._has_answered = False
        self._out: dict[int, float] = {}
        self._last = 0
        self._since: float | None = None
        self._gone: set[str] = set()
        self._failed: set[str] = set()
        self._unanswered = 0
        self._most_out = 0
        self._outcomes = Outcomes()
        self._retries = 0
        self._helped = 0.0
        """The share of later tries that were answered."""

    def sent(self, now: float) -> int:
        """A request goes out. Its number must come back by one of the others, whatever becomes of it."""
        self._last += 1
        self._out[self._last] = now
        return self._last

    @property
    def newest(self) -> int:
        """The number of the last request that went out."""
        return self._last

    def out_before(self, request: int) -> int:
        """Requests that were sent before the one of this number, and are still waited for."""
        return sum(number < request for number in self._out)

    def succeeded(self, request: int) -> None:
        del self._out[request]
        self._has_answered = True
        self._since = None
        self._outcomes.went_well()

    def retried(self, *, helped: bool) -> None:
        """A request that had failed was sent again, and answered or not. Where another try helps as a rule, failures
        are the server's moods and not the prompts': then agents may try more often."""
        self._retries = min(_RETRIES, self._retries + 1)
        self._helped += (helped - self._helped) / self._retries

    def left(self, request: int) -> None:
        """Nobody waits for it any more."""
        self._out.pop(request, None)

    def failed(self, request: int, agent: str, error: BackendError, now: float) -> Verdict:
        del self._out[request]
        self._outcomes.went_wrong()
        if error.kind in _REFUSALS:
            self._count(agent, error, now)
            return self._refused(error)
        if error.kind in _BREAKDOWNS:
            self._count(agent, error, now)
            return self._broken(error, now)
        if error.kind is not ErrorKind.RATE_LIMITED:  # it has read the request, and had something to say about it
            self._since = None
        return self._alone()

    def _alone(self, patience: int = 1) -> RetryAgent:
        return RetryAgent(patience, self._has_answered and self._outcomes.share_of_trouble < _MUCH_TROUBLE)

    def _count(self, agent: str, error: BackendError, now: float) -> None:
        if self._since is None:
            self._since = now
            self._gone.clear()
            self._failed.clear()
            self._unanswered = self._most_out = 0
        self._failed.add(agent)
        self._unanswered += error.kind is ErrorKind.TURN_TIMEOUT
        self._most_out = max(self._most_out, len(self._out) + 1)
        if error.kind is ErrorKind.UNAVAILABLE:
            self._gone.add(agent)

    def _refused(self, error: BackendError) -> Verdict:
        is_certain = not self._has_answered and (error.status == 401 or error.kind is ErrorKind.TLS)
        needed = _SURE if error.status == 401 else _REFUSED
        if is_certain or (len(self._failed) >= needed and not self._somebody_waits):
            return StopRun(f"The backend refuses every request. {error}")
        return _ALONE

    def _broken(self, error: BackendError, now: float) -> Verdict:
        assert self._since is not None
        lasted = now - self._since
        if self._somebody_waits:
            return self._alone(_BUSY_PATIENCE if error.kind is ErrorKind.UNAVAILABLE else self._usual_patience(error))
        is_gone = len(self._gone) >= _SURE
        hangs = len(self._failed) >= _SURE and self._unanswered >= max(_REFUSED, _ROUNDS * self._most_out)
        if hangs or (lasted >= self._patience and (is_gone or len(self._failed) >= _BROKEN)):
            what = _BREAKDOWNS[error.kind]
            return StopRun(f"The backend {what}: nothing was answered for {lasted:.0f} s. {error}")
        if error.kind is not ErrorKind.UNAVAILABLE:
            return self._alone(self._usual_patience(error))
        if is_gone and error.retry_after is None:
            return PauseAll(min(_LONGEST_HOLD, max(_SHORTEST_HOLD, lasted / 2)))
        return self._alone(_LESS_PATIENCE if self._has_answered else 1)

    def _usual_patience(self, error: BackendError) -> int:
        return _LESS_PATIENCE if error.kind in _PASSING and self._helped > 0.5 else 1

    @property
    def _somebody_waits(self) -> bool:
        """Whether a request that was sent before the trouble began may still be answered."""
        oldest = next(iter(self._out.values()), None)
        return oldest is not None and self._since is not None and oldest <= self._since
