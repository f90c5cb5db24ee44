"""Pace: how many requests and tokens may be sent per minute. Time is an argument; nothing here waits.

Each limit is a token bucket that holds one second of it, so that requests are spread over the minute: services enforce
their limits over shorter times too. What a request takes is reserved by an estimate before it is sent, and corrected
when its usage is known."""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple, Protocol, runtime_checkable

from ..core.fast_dataclass import dataclass
from ..core.protocols.backend import PaceKind, ServiceLimit
from ..core.requests import NO_USAGE, Usage
from ..core.run_reports import Pacing

_MINUTE = 60.0
_MAX_RESET = 90.0
"""Seconds. A limit that takes longer to reset is not one per minute, but per day."""
_RESERVE = 0.1
"""Share of what a service allows at once that is not used up, for requests in flight which its last response did not
count."""
_TICK = 1e-6
"""Rounding errors of the levels and of the clock."""
_FIRST_OUTPUT = 256
"""Assumed tokens of a reply, until one is known."""
_AVERAGED_REPLIES = 32
_MAX_GRANTS = 4096
"""More than can be in flight. Grants of requests that were never sent, for want of budget, are dropped some time."""


@dataclass(slots=True)
class _Bucket:
    """Token bucket. Its level is negative after a request that takes more than it holds."""

    limit: float
    level: float
    at: float

    @property
    def burst(self) -> float:
        return max(1.0, self.limit / _MINUTE)

    @property
    def rate(self) -> float:
        """Per second. With the burst, no minute has more than the limit."""
        return (self.limit - self.burst + 1) / _MINUTE if self.limit > 1 else self.limit / _MINUTE

    def fill(self, now: float) -> None:
        self.level = min(self.burst, self.level + max(0.0, now - self.at) * self.rate)
        self.at = now

    def ready_at(self, cost: float) -> float:
        missing = min(cost, self.burst) - self.level
        return self.at if missing <= _TICK else self.at + missing / self.rate


@dataclass(slots=True)
class Pace:
    """Limits per minute of one backend, from options and from its responses; the lower one counts. Without any limit,
    nothing is delayed."""

    options: Mapping[PaceKind, int] = field(default_factory=dict)
    share: float = 1.0
    """Share of the limits that this worker may use."""
    delayed: int = 0
    """Requests that had to wait for the pace."""
    endpoints: "EndpointPaces | None" = None
    """Of a backend of several endpoints, whose limits count in addition."""
    _reported: dict[PaceKind, int] = field(default_factory=dict)
    _buckets: dict[PaceKind, _Bucket] = field(default_factory=dict)
    _output: float | None = None
    """Mean tokens of a reply."""

    def ready_at(self, cost: Usage, now: float) -> float:
        """When a request of this estimated usage may be sent: `now`, or a later time."""
        self._open(now)
        for bucket in self._buckets.values():
            bucket.fill(now)
        own = max((bucket.ready_at(_cost(kind, cost)) for kind, bucket in self._buckets.items()), default=now)
        return own if self.endpoints is None else max(own, self.endpoints.ready_at(cost, now))

    def reserve(self, cost: Usage) -> None:
        """Takes what a request that is sent now needs by its estimate."""
        for kind, bucket in self._buckets.items():
            bucket.level -= _cost(kind, cost)
        if self.endpoints is not None:
            self.endpoints.reserve(cost)

    def refund(self, cost: Usage) -> None:
        """Returns the reservation of a request that was not sent."""
        for kind, bucket in self._buckets.items():
            bucket.level = min(bucket.burst, bucket.level + _cost(kind, cost))
        if self.endpoints is not None:
            self.endpoints.refund(cost)

    def settle(self, reserved: Usage, usage: Usage) -> None:
        """Corrects the reservation of a request by its usage."""
        if usage == NO_USAGE:
            return
        if reserved.output:  # else it was not a turn of an agent, and says nothing about the length of replies
            seen = usage.output if self._output is None else self._output
            self._output = seen + (usage.output - seen) / _AVERAGED_REPLIES
        self._correct(reserved, usage, 1.0)
        if self.endpoints is not None:
            self.endpoints.correct(reserved, usage)

    def expected_output(self, max_tokens: int | None) -> int:
        """Tokens that are reserved for a reply."""
        expected = self._output if self._output is not None else max_tokens or _FIRST_OUTPUT
        return round(expected if max_tokens is None else min(expected, max_tokens))

    def report(self, limits: Mapping[PaceKind, ServiceLimit], now: float) -> None:
        """Takes over the limits that a response reported. A service that has less left than is assumed here, because
        others use it too or because it counts otherwise, gets time to recover."""
        for kind, found in limits.items():
            if found.limit < 1 or (found.reset is not None and found.reset > _MAX_RESET):
                self._reported.pop(kind, None)
            else:
                self._reported[kind] = found.limit
        self._resize(now)
        for kind, found in limits.items():
            bucket = self._buckets.get(kind)
            if bucket is not None and kind in self._reported and found.remaining is not None:
                bucket.fill(now)
                bucket.level = min(bucket.level, self.share * (found.remaining - _RESERVE * _window(found)))

    def set_share(self, share: float, now: float) -> None:
        """Changes this worker's share of the limits."""
        if share != self.share:
            self.share = share
            self._resize(now)
        if self.endpoints is not None:
            self.endpoints.set_share(share, now)

    def pacing(self) -> Pacing | None:
        """Report for the user; None without a limit. Limits are those of all workers together."""
        reported = self._reported if self.endpoints is None else self.endpoints.total()
        limits = _lower(self.options, reported)
        if not limits:
            return None
        tokens = [limits[kind] for kind in ("tokens", "input_tokens") if kind in limits]
        is_option = any(reported.get(kind, limit + 1) > limit for kind, limit in limits.items())
        return Pacing(
            limits.get("requests"), min(tokens, default=None), limits.get("output_tokens"), not is_option, self.delayed
        )

    def _correct(self, reserved: Usage, usage: Usage, part: float) -> None:
        for kind, bucket in self._buckets.items():
            if kind != "requests":
                change = part * (_cost(kind, reserved) - _cost(kind, usage))
                bucket.level = min(bucket.burst, bucket.level + change)

    def _assume(self, limits: Mapping[PaceKind, ServiceLimit], now: float) -> None:
        """Limits of another endpoint. One request is sent at once, which tells the real ones, and no burst: they may be
        lower."""
        self.report(limits, now)
        if (bucket := self._buckets.get("requests")) is not None:
            bucket.level = min(bucket.level, 1.0)

    def _open(self, now: float) -> None:
        if not self._buckets and self.options:
            self._resize(now)

    def _resize(self, now: float) -> None:
        limits = _lower(self.options, self._reported)
        for kind in [kind for kind in self._buckets if kind not in limits]:
            del self._buckets[kind]
        for kind, total in limits.items():
            limit = total * self.share
            bucket = self._buckets.get(kind)
            if bucket is None:
                bucket = self._buckets[kind] = _Bucket(limit, min(limit, max(1.0, limit / _MINUTE)), now)
            elif bucket.limit != limit:
                bucket.fill(now)
                bucket.limit = limit
                bucket.level = min(bucket.level, bucket.burst)


class Grant(NamedTuple):
    """A request that one endpoint may take."""

    endpoint: int
    cost: Usage


class EndpointPaces:
    """Limits per minute of several endpoints, each with its own. A request is granted when one endpoint may take it;
    the backend then sends it there, or to another endpoint that may take it too."""

    def __init__(self, reports: Sequence[bool], available: Callable[[float], Collection[int]]) -> None:
        """`reports`: whether each endpoint may report limits. `available`: the endpoints that get requests now."""
        self._members = [Pace() for _ in reports]
        self._available = available
        self._unknown = {index for index, may in enumerate(reports) if may}
        """Endpoints that may report limits and have not yet. The first report of another one is assumed for them."""
        self._next = 0
        self._grants: deque[Grant] = deque(maxlen=_MAX_GRANTS)
        """Granted requests that are not sent yet. They are alike, but for their estimates."""

    def add(self, *, may_report: bool) -> None:
        """A further endpoint has joined. Its limits are those that another one reports next, until it reports its
        own."""
        self._members.append(Pace(share=self._members[0].share))
        if may_report:
            self._unknown.add(len(self._members) - 1)

    def ready_at(self, cost: Usage, now: float) -> float:
        usable = self._available(now) or range(len(self._members))
        at, self._next = min((self._members[index].ready_at(cost, now), index) for index in usable)
        return at

    def reserve(self, cost: Usage) -> None:
        """Grants the request for which `ready_at` was called last."""
        self._members[self._next].reserve(cost)
        self._grants.append(Grant(self._next, cost))

    def refund(self, cost: Usage) -> None:
        """Takes back the grant of a request that is not sent."""
        grant = next((each for each in self._grants if each.cost == cost), None)
        if grant is not None:
            self._grants.remove(grant)
            self._members[grant.endpoint].refund(cost)

    def correct(self, reserved: Usage, usage: Usage) -> None:
        """Corrects the reservation of a request by its usage, at all endpoints by their share of the requests: on
        average, it was sent there as often."""
        total = sum(map(_weight, self._members))
        for member in self._members:
            if total:
                member._correct(reserved, usage, _weight(member) / total)

    def set_share(self, share: float, now: float) -> None:
        for member in self._members:
            member.set_share(share, now)

    def report(self, endpoint: int, limits: Mapping[PaceKind, ServiceLimit], now: float) -> None:
        """An endpoint reported its limits."""
        self._unknown.discard(endpoint)
        self._members[endpoint].report(limits, now)
        for other in self._unknown:
            if not self._members[other]._reported:
                self._members[other]._assume({kind: ServiceLimit(each.limit) for kind, each in limits.items()}, now)

    def take(self) -> Grant | None:
        """The grant of a request that is about to be sent. None: it was not granted here, and is not counted."""
        return self._grants.popleft() if self._grants else None

    def early(self, grant: Grant, now: float) -> set[int]:
        """Endpoints that may not take the request yet."""
        members = enumerate(self._members)
        return {index for index, each in members if index != grant.endpoint and each.ready_at(grant.cost, now) > now}

    def sent(self, grant: Grant, endpoint: int, *, is_repeated: bool = False) -> None:
        """The request is sent to this endpoint. `is_repeated`: after another one, which may have counted it, failed."""
        if is_repeated:
            self._members[endpoint].reserve(grant.cost)
        elif endpoint != grant.endpoint:
            self._members[grant.endpoint].refund(grant.cost)
            self._members[endpoint].reserve(grant.cost)

    def total(self) -> dict[PaceKind, int]:
        """Limits of all endpoints together; none of a kind that does not limit every endpoint."""
        kinds = set[PaceKind].intersection(*(set(each._reported) for each in self._members))
        return {kind: sum(each._reported[kind] for each in self._members) for kind in kinds}


@runtime_checkable
class PacesEndpoints(Protocol):
    """Backend of several endpoints that may report limits."""

    @property
    def paces(self) -> EndpointPaces | None: ...


def _weight(member: Pace) -> float:
    """A number that is proportional to the requests which an endpoint takes."""
    return max(member._reported.values(), default=0)


def _lower(options: Mapping[PaceKind, int], reported: Mapping[PaceKind, int]) -> dict[PaceKind, int]:
    limits = dict(options)
    for kind, limit in reported.items():
        limits[kind] = min(limit, limits.get(kind, limit))
    return limits


def _window(found: ServiceLimit) -> float:
    """What the service allows at once: less than the limit if it counts over a shorter time than a minute, as Azure
    does over ten seconds. That shows where little is left, and will soon be free again."""
    if found.remaining is None or found.reset is None:
        return found.limit
    return min(found.limit, found.remaining + found.reset * found.limit / _MINUTE)


def _cost(kind: PaceKind, usage: Usage) -> float:
    match kind:
        case "requests":
            return 1.0
        case "tokens":
            return usage.input + usage.output
        case "input_tokens":
            return usage.input - usage.cached  # services that count these apart do not count what they have cached
        case "output_tokens":
            return usage.output
