"""Health of a backend, judged from the failures of all agents.

A failure may concern one agent only, or a few prompts that a server cannot handle. It is attributed to the backend when
several agents fail, no request is answered in between, and no request that was sent before the first failure is still
in flight: errors arrive sooner than answers, so at first there is nothing else."""

from ..core.errors import BackendError, ErrorKind, WebPage
from ..core.fast_dataclass import dataclass

_REMEMBERED_REQUESTS = 40
"""Few enough to recognize soon that a server has begun to fail, but more than a chance run of failures."""
_MIN_FAILURES = 3
"""With fewer failures the rate is taken as 0: one failure of one request would be all of them."""


@dataclass(slots=True)
class Outcomes:
    """Decaying counts of successes and failures."""

    _good: float = 0.0
    _bad: float = 0.0

    def record_success(self) -> None:
        self._good += 1
        self._forget()

    def record_failure(self) -> None:
        self._bad += 1
        self._forget()

    @property
    def failure_rate(self) -> float:
        return self._bad / (self._bad + self._good) if self._bad >= _MIN_FAILURES else 0.0

    def _forget(self) -> None:
        if self._good + self._bad > _REMEMBERED_REQUESTS:
            self._good /= 2
            self._bad /= 2


_CERTAIN_AGENTS = 3
"""Number of agents with refused connections that proves an outage."""
_CERTAIN_PAGES = 3
"""Attempts to which a web page is the response, before the first answer. Those of one agent count, too: it makes so
many within two seconds."""
_REFUSED_AGENTS = 10
_BROKEN_AGENTS = 20
"""Number of failed agents that proves an outage, if their prompts may be the cause."""
REJECTED_AGENTS = 50
"""Agents of a run whose rejection stops it, while no request was ever answered. More than a few bad prompts that happen
to be the first; rejections cost nothing and come at once."""
_TIMED_OUT_ROUNDS = 2
"""Rounds of requests that time out before the backend counts as down."""
_MIN_PAUSE = 0.5
_MAX_PAUSE = 5.0
_BUSY_RETRY_FACTOR, _TRANSIENT_RETRY_FACTOR = 10, 3
_HIGH_FAILURE_RATE = 0.3
_AVERAGED_RETRIES = 16
"""Retries over which the share that succeeded is averaged."""

_OF_THE_ACCOUNT = (401, 402, 429)
"""Status of a refusal whose cause is the key or the account, and never a prompt (429: a quota that is used up)."""
_REFUSALS = frozenset({ErrorKind.AUTH, ErrorKind.NOT_FOUND, ErrorKind.TLS})
_REJECTIONS = _REFUSALS | {ErrorKind.BAD_REQUEST}
_BREAKDOWNS = {
    ErrorKind.UNAVAILABLE: "is unavailable",
    ErrorKind.CONNECTION: "drops every connection",
    ErrorKind.SERVER: "fails every request",
    ErrorKind.TURN_TIMEOUT: "hangs",
}


@dataclass(frozen=True, slots=True)
class RetryAgent:
    """The failure concerns only its agent, which may retry `retry_factor` times as often as usual."""

    retry_factor: int = 1
    others_succeed: bool = False
    """Most other requests succeed: this one may be sent again soon."""


@dataclass(frozen=True, slots=True)
class PauseAll:
    """No request is sent for `seconds`, then a single probe. The attempt does not count."""

    seconds: float


@dataclass(frozen=True, slots=True)
class StopRun:
    """No agent can continue."""

    reason: str


Verdict = RetryAgent | PauseAll | StopRun
_RETRY_AGENT = RetryAgent()
_TRANSIENT = frozenset({ErrorKind.SERVER, ErrorKind.CONNECTION})
"""Failures that may be momentary and are cheap to retry."""


class Health:
    """Judges each failure. `max_outage`: seconds after which a run stops if its backend stays unavailable.
    `max_rejected`: agents whose requests are rejected before a run stops, if no request was ever answered; None: a
    rejection only concerns its request."""

    def __init__(self, max_outage: float, max_rejected: int | None = None) -> None:
        self._max_outage = max_outage
        self._max_rejected = max_rejected
        self._rejected: set[str] = set()
        self._rejected_since: float | None = None
        self._has_answered = False
        self._in_flight: dict[int, float] = {}
        self._last = 0
        self._denied: set[str] = set()
        """Agents whose key was refused for a request that was sent after the first such refusal."""
        self._first_denial: tuple[int, float] | None = None
        """The newest request at the time, and the time."""
        self._since: float | None = None
        self._first_error = ""
        self._unavailable: set[str] = set()
        self._failed: set[str] = set()
        self._unanswered = 0
        self._pages = 0
        self._max_in_flight = 0
        self._outcomes = Outcomes()
        self._retries = 0
        self._helped = 0.0
        """Share of retries that succeeded."""

    def sent(self, now: float) -> int:
        """A request is sent. Its number must be passed to `succeeded`, `failed` or `abandoned`."""
        self._last += 1
        self._in_flight[self._last] = now
        return self._last

    @property
    def newest_request(self) -> int:
        """Number of the last request that was sent."""
        return self._last

    @property
    def others_succeed(self) -> bool:
        """Whether most requests succeed."""
        return self._has_answered and self._outcomes.failure_rate < _HIGH_FAILURE_RATE

    def in_flight_before(self, request: int) -> int:
        """Requests in flight that were sent before the one with this number."""
        return sum(number < request for number in self._in_flight)

    def succeeded(self, request: int) -> None:
        del self._in_flight[request]
        self._has_answered = True
        self._since = None
        if self._first_denial is not None and request > self._first_denial[0]:
            self._first_denial = None
            self._denied.clear()
        self._outcomes.record_success()

    def answered_before(self) -> None:
        """Notes that the backend answered requests of an earlier run, so what it rejects now may be just the prompts
        that are left."""
        self._max_rejected = None

    def retried(self, *, helped: bool) -> None:
        """A retry ended. If retries usually succeed, failures are caused by the server rather than by prompts, and
        agents may retry more often."""
        self._retries = min(_AVERAGED_RETRIES, self._retries + 1)
        self._helped += (helped - self._helped) / self._retries

    def abandoned(self, request: int) -> None:
        """The caller no longer waits for the request. May be called for one that has ended."""
        self._in_flight.pop(request, None)

    def failed(self, request: int, agent: str, error: BackendError, now: float) -> Verdict:
        del self._in_flight[request]
        self._outcomes.record_failure()
        if error.kind in _REJECTIONS and self._rejects_all(agent, now):
            return StopRun(_rejects_all_reason(len(self._rejected), error))
        if error.kind in _REFUSALS:
            self._count(agent, error, now)
            is_of_account = error.kind is ErrorKind.AUTH and error.status in _OF_THE_ACCOUNT
            return (self._key_refused(request, agent, error, now) if is_of_account else None) or self._refused(error)
        if error.kind in _BREAKDOWNS:
            self._count(agent, error, now)
            return self._broken(error, now)
        if error.kind is not ErrorKind.RATE_LIMITED:  # the server has processed the request
            self._since = None
        return self._retry_agent()

    def _retry_agent(self, retry_factor: int = 1) -> RetryAgent:
        return RetryAgent(retry_factor, self.others_succeed)

    def _count(self, agent: str, error: BackendError, now: float) -> None:
        if self._since is None:
            self._since = now
            self._first_error = str(error)
            self._unavailable.clear()
            self._failed.clear()
            self._unanswered = self._max_in_flight = self._pages = 0
        self._failed.add(agent)
        self._unanswered += error.kind is ErrorKind.TURN_TIMEOUT
        self._pages += isinstance(error, WebPage)
        self._max_in_flight = max(self._max_in_flight, len(self._in_flight) + 1)
        if error.kind is ErrorKind.UNAVAILABLE:
            self._unavailable.add(agent)

    def _rejects_all(self, agent: str, now: float) -> bool:
        """Whether so many agents were rejected, and none answered, that their prompts cannot be the cause."""
        if self._max_rejected is None or self._has_answered:
            return False
        if self._rejected_since is None:
            self._rejected_since = now
        self._rejected.add(agent)
        return len(self._rejected) >= self._max_rejected and not self._was_sent_by(self._rejected_since)

    def _refused(self, error: BackendError) -> Verdict:
        is_certain = not self._has_answered and (error.status == 401 or error.kind is ErrorKind.TLS)
        needed = _CERTAIN_AGENTS if error.status == 401 else _REFUSED_AGENTS
        if is_certain or (len(self._failed) >= needed and not self._has_earlier_request):
            return StopRun(f"The backend rejects every request. {error}")
        return _RETRY_AGENT

    def _key_refused(self, request: int, agent: str, error: BackendError, now: float) -> Verdict | None:
        """Verdict on a key that was revoked during the run. Earlier requests may still be answered, and are awaited.
        None while too few newer requests have ended to decide: refusals arrive sooner than answers."""
        if self._first_denial is None:
            self._first_denial = self._last, now
        newest, since = self._first_denial
        if request > newest:
            self._denied.add(agent)
        newer = sum(number > newest for number in self._in_flight)
        if len(self._denied) < max(_REFUSED_AGENTS, 2 * newer):
            return None
        if len(self._in_flight) > newer:
            return PauseAll(min(_MAX_PAUSE, max(_MIN_PAUSE, (now - since) / 2)))
        return StopRun(f"The backend rejects every request. {error}")

    def _broken(self, error: BackendError, now: float) -> Verdict:
        assert self._since is not None
        lasted = now - self._since
        if self._has_earlier_request:
            return self._retry_agent(
                _BUSY_RETRY_FACTOR if error.kind is ErrorKind.UNAVAILABLE else self._usual_retry_factor(error)
            )
        if self._pages >= _CERTAIN_PAGES and not self._has_answered:
            return StopRun(f"The backend answers no request. {error}")
        is_gone = len(self._unavailable) >= _CERTAIN_AGENTS
        hangs = len(self._failed) >= _CERTAIN_AGENTS and self._unanswered >= max(
            _REFUSED_AGENTS, _TIMED_OUT_ROUNDS * self._max_in_flight
        )
        if hangs or (lasted >= self._max_outage and (is_gone or len(self._failed) >= _BROKEN_AGENTS)):
            what, began = _BREAKDOWNS[error.kind], ""
            if str(error) != self._first_error:  # a server that breaks down may say why before it is gone
                began = f" The first failure was: {self._first_error}"
            return StopRun(f"The backend {what}: no request was answered for {lasted:.0f} s. {error}{began}")
        if error.kind is not ErrorKind.UNAVAILABLE:
            return self._retry_agent(self._usual_retry_factor(error))
        if is_gone and error.retry_after is None:
            return PauseAll(min(_MAX_PAUSE, max(_MIN_PAUSE, lasted / 2)))
        return self._retry_agent(_TRANSIENT_RETRY_FACTOR if self._has_answered else 1)

    def _usual_retry_factor(self, error: BackendError) -> int:
        return _TRANSIENT_RETRY_FACTOR if error.kind in _TRANSIENT and self._helped > 0.5 else 1

    @property
    def _has_earlier_request(self) -> bool:
        """Whether a request that was sent before the first failure may still be answered."""
        return self._since is not None and self._was_sent_by(self._since)

    def _was_sent_by(self, when: float) -> bool:
        """Whether a request that was sent until then is still in flight."""
        oldest = next(iter(self._in_flight.values()), None)
        return oldest is not None and oldest <= when


def _rejects_all_reason(agents: int, error: BackendError) -> str:
    return (
        f"The backend rejects every request: {agents} agents were rejected, and none was answered. {error} "
        "Fix the options or the server, and start the run again: with a checkpoint it resumes. If the first inputs "
        "are at fault, retry_failed=False leaves them out when it resumes."
    )
