"""Health of the endpoints of a pool: which of them are at fault for a failed request, and which agents are."""

from collections.abc import Callable, Mapping, Sequence, Set

from ... import aio
from ...core.errors import BackendError, ErrorKind, WebPage
from ...schedule.endpoints.routing import Routing, Ticket
from ...schedule.retry import is_overload_refusal
from .failover import (
    EMPTY_ANSWER,
    ENDPOINT_FAULTS,
    REJECTIONS,
    AgentFailures,
    EndpointRejection,
    rejected_by_all,
    request_may_cause,
)
from .pool_member import PoolEndpoint

_TRANSIENT_FAULTS = frozenset({ErrorKind.SERVER, ErrorKind.UNAVAILABLE})
"""Errors that a healthy endpoint may respond with now and then."""
_HANG_SECONDS = 10.0
"""Seconds without a response after which a cancelled request counts against the endpoint."""
_MIN_HANG_SECONDS = 1.0
_HANG_FACTOR = 5.0
"""The same as a multiple of the slowest response so far, for turns with a timeout below `_HANG_SECONDS`."""


class EndpointHealth:
    """Tells the routing which endpoints are at fault for how a request ended, and the user which endpoints are down."""

    def __init__(self, members: Sequence[PoolEndpoint], routing: Routing, notify: Callable[[str], None]) -> None:
        """`members`: of the pool; its list, to which endpoints are added."""
        self._members = members
        self._routing = routing
        self._notify = notify
        self.failures: dict[str, AgentFailures] = {}
        """Of the agents whose last request had no answer. The pool removes agents that have ended."""
        self._slowest_seconds = 0.0
        """Duration of the slowest response."""

    def is_serving(self, index: int) -> bool:
        """Whether the endpoint takes requests, or will when it is up again."""
        return not (self._members[index].has_left or self._routing.is_draining(index))

    def exclusions(self, agent: str, exclude: Set[int], early: Set[int]) -> Sequence[Set[int]]:
        """Endpoints that do not get a request, in the order of preference: one on which the agent failed before, or
        whose pace does not allow the request yet (`early`), is used only if there is no other."""
        failures = self.failures.get(agent)
        if failures is None:
            return exclude | early, exclude
        if failures.is_contained:
            exclude = exclude | (set(range(len(self._members))) - failures.broken)
        return exclude | failures.avoided | early, exclude | early, exclude | failures.avoided, exclude

    def record_failure(self, ticket: Ticket, index: int, error: BackendError, *, is_certain: bool = False) -> None:
        """Records a failed request. An endpoint that is down must accept a request to be up again: a rejection is not
        enough. `is_certain`: a rejection is known to be the endpoint's fault."""
        is_unreachable = error.kind is ErrorKind.UNAVAILABLE and error.status is None
        never_connected = self._members[index].backend is None  # several attempts to connect failed
        is_refused = is_unreachable or never_connected or error.kind is ErrorKind.TURN_TIMEOUT
        is_blamed = is_certain or not self._routing.is_up(index)
        is_endpoint_fault = error.kind in ENDPOINT_FAULTS or (error.kind in REJECTIONS and is_blamed)
        is_endpoint_fault = is_endpoint_fault and not is_overload_refusal(error)  # it is up, and overloaded
        is_endpoint_fault = is_endpoint_fault or never_connected
        has_answered = error.kind in _TRANSIENT_FAULTS and error.status is not None
        self._routing.failed(
            ticket, aio.now(), is_endpoint_fault=is_endpoint_fault, is_refused=is_refused, is_passing=has_answered
        )

    def blame(self, rejection: EndpointRejection) -> None:
        """Another endpoint accepted the request that this endpoint rejected."""
        self._routing.blame(rejection.endpoint, rejection.ticket, aio.now())
        self.mark_down(rejection.endpoint, rejection.error, do_others_accept=True)

    def on_success(self, ticket: Ticket, index: int, agent: str, started: float) -> None:
        now, member = aio.now(), self._members[index]
        self._routing.done(ticket, now)
        if now - started > self._slowest_seconds:
            self._slowest_seconds = now - started
        member.record.on_answer()
        if agent in self.failures:
            for rejection in self.failures.pop(agent).empty_answers:
                if rejection.endpoint != index:
                    self.blame(rejection)
        if member.is_down:
            self.mark_up(index)

    def on_empty(self, ticket: Ticket, index: int, agent: str, started: float) -> None:
        """The answer has neither text nor calls. If another endpoint answers the agent with more, this one is at
        fault."""
        if self._routing.is_up(index):
            self._routing.abandoned(ticket, aio.now())
        else:
            self._routing.failed(ticket, aio.now(), is_endpoint_fault=True)
        if agent:
            failures = self._failures_of(agent)
            failures.avoided.add(index)
            failures.empty_answers.append(EndpointRejection(index, ticket, EMPTY_ANSWER))

    def on_failure(self, ticket: Ticket, index: int, agent: str, error: BackendError) -> None:
        """A failure does not count against the endpoint if the agent's last request failed in the same way
        elsewhere."""
        record, failures = self._members[index].record, self.failures.get(agent)
        may_be_agent_fault = bool(agent) and request_may_cause(error, record)
        is_suspect = failures is not None and failures.is_suspect
        if may_be_agent_fault and is_suspect and self._routing.is_up(index):
            self._routing.abandoned(ticket, aio.now())
        else:
            self.record_failure(ticket, index, error)
            self.mark_down(index, error)
        if may_be_agent_fault:
            failures = self._failures_of(agent)
            failures.is_suspect = True
            if record.is_proven:
                failures.broken.add(index)
        record.on_miss()
        self.avoid(index, agent)

    def avoid(self, index: int, agent: str) -> None:
        """The agent's next request goes to another endpoint."""
        if agent:
            self._failures_of(agent).avoided.add(index)

    def is_contained(self, agent: str) -> bool:
        """Whether the agent's requests broke so many endpoints that they go to no other one."""
        return agent in self.failures and self.failures[agent].is_contained

    def _failures_of(self, agent: str) -> AgentFailures:
        return self.failures.setdefault(agent, AgentFailures())

    def is_hang(self, seconds: float) -> bool:
        """Whether an endpoint that did not respond for so long is considered to hang."""
        relative_limit = max(_MIN_HANG_SECONDS, _HANG_FACTOR * self._slowest_seconds)
        return seconds >= (min(_HANG_SECONDS, relative_limit) if self._slowest_seconds else _HANG_SECONDS)

    def mark_down(self, index: int, error: BackendError, *, do_others_accept: bool = False) -> None:
        """Notifies the user, once, that an endpoint is down. `do_others_accept`: another endpoint accepted what this
        one rejected."""
        member = self._members[index]
        member.last_error = str(error)
        if not member.is_down and not self._routing.is_up(index):
            member.is_down = True
            problem = "is down"
            if error.kind in REJECTIONS:
                problem = "rejects requests that other endpoints accept" if do_others_accept else "rejects requests"
            elif error is EMPTY_ANSWER:
                problem = "returns empty answers where other endpoints do not"
            then = "; its requests go to the other endpoints" if self._routing.is_any_up else ""
            self._notify(f"{member.url} {problem}{then}: {error}")

    def mark_up(self, index: int) -> None:
        member = self._members[index]
        if member.is_down and self._routing.is_up(index):  # not for an answer to a request from before it was ejected
            member.is_down = False
            self._notify(f"{member.url} is back up.")

    def unavailable(self) -> tuple[str, ...]:
        return tuple(f"{each.url}: {each.last_error}" for each in self._members if each.is_down)

    def no_endpoint_error(
        self, failed: Mapping[int, BackendError], indices: Sequence[int] | None = None
    ) -> BackendError:
        """The error when no endpoint accepts a request. `failed`: its errors, by endpoint; `indices`: the endpoints
        that were eligible."""
        errors = list(failed.values())
        for error in errors:
            if error.kind not in ENDPOINT_FAULTS:  # the request was rejected: the server's own message
                return self._rejection_error(failed, error)
        kind = errors[-1].kind if errors else ErrorKind.UNAVAILABLE
        if indices is None and not any(map(self.is_serving, range(len(self._members)))):
            text = "No endpoint takes requests: all of them have left, and no other one has joined yet."
            return BackendError(ErrorKind.UNAVAILABLE, text)
        candidates = [at for at, each in enumerate(self._members) if not each.has_left] if indices is None else indices
        problems = " ".join(f"{self._members[at].url}: {failed.get(at) or self._problem(at)}" for at in candidates)
        subject = (
            "The endpoint did not answer" if len(candidates) == 1 else f"None of {len(candidates)} endpoints answered"
        )
        message = f"{subject} the request. {problems}"
        if errors and all(is_overload_refusal(error) for error in errors):
            pauses = [error.retry_after for error in errors if error.retry_after is not None]
            return BackendError(kind, message, retry_after=min(pauses, default=None), status=errors[-1].status)
        error_class = WebPage if errors and all(isinstance(error, WebPage) for error in errors) else BackendError
        return error_class(kind, message)

    def _rejection_error(self, failed: Mapping[int, BackendError], error: BackendError) -> BackendError:
        members = [self._members[index] for index in failed]
        if error.kind is not ErrorKind.BAD_REQUEST or any(each.record.has_answered for each in members):
            return error
        return rejected_by_all(error, [each.url for each in members])

    def breaking_error(self, failed: Mapping[int, BackendError]) -> BackendError:
        """The error of a request that proven endpoints did not survive."""
        problems = " ".join(f"{self._members[index].url}: {error}" for index, error in failed.items())
        last = list(failed.values())[-1]
        message = f"{len(failed)} endpoints that answer others failed with this request. {problems}"
        return BackendError(last.kind, message, status=last.status)

    def _problem(self, index: int) -> str:
        if self._routing.is_draining(index):
            return "It is draining."
        return self._members[index].last_error or "It is at its limit."
