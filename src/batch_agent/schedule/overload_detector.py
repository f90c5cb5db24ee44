"""Overload detection: a sequential test that separates an overloaded server from single refusals.

A single refusal says little: many services refuse a share of requests at random, regardless of their number. A server
that is over a limit refuses one request after the other, because each refusal frees a slot at once for the next
request, which is refused too. So the test decides whether most requests are refused. It is a random walk over the
requests in the order in which they were sent: one up for each refusal, one down for every other request, never below
zero (a CUSUM test of a rate of a quarter against one of three quarters). If a fifth is refused at random, the walk
reaches `_THRESHOLD` once in two million requests; if all are refused, after `_THRESHOLD` requests."""

from bisect import insort
from dataclasses import field

from ..core.fast_dataclass import dataclass

_THRESHOLD = 10
"""Refusals in excess of other requests."""
_THRESHOLD_AGAIN = 4
"""The same for a server that was recently overloaded: it is likely to be overloaded again."""
_MAX_EARLIER_SHARE = 0.15
"""Share of the requests since the last overload that were refused. A higher share is random: a limit refuses none while
it is not reached."""
_MEMORY_REQUESTS = 200
"""Requests after which the last overload is forgotten."""
_KEPT_REFUSALS = 4 * _THRESHOLD
"""Refusals from which the walk is computed."""


@dataclass(slots=True)
class OverloadDetector:
    """Detects overload from the numbers of refused requests, which increase in the order of sending. A request without
    a response counts as accepted: answers take longer than refusals, so the order of arrival says little."""

    _refused: list[int] = field(default_factory=list)
    """Sorted."""
    _overloaded_at: int | None = None
    """Newest request at the last overload. Earlier requests carry no new information."""
    _since: int = 0
    """Refusals since the last overload."""

    def is_relevant(self, request: int) -> bool:
        """Whether the request was sent after the last overload was detected."""
        return self._overloaded_at is None or request > self._overloaded_at

    def is_overloaded(self, request: int, newest: int) -> bool:
        """Records the refusal of a relevant request, and whether most requests sent around that time were refused.
        `newest`: number of the last request that was sent."""
        insort(self._refused, request)
        del self._refused[:-_KEPT_REFUSALS]
        self._since += 1
        first, excess = _walk(self._refused)
        if excess < (_THRESHOLD_AGAIN if self._is_likely(first) else _THRESHOLD):
            return False
        self._overloaded_at, self._since = newest, 0
        self._refused.clear()
        return True

    def _is_likely(self, first: int) -> bool:
        """Whether the refusals from this request on probably belong to the last overload."""
        if self._overloaded_at is None or first - self._overloaded_at > _MEMORY_REQUESTS:
            return False
        earlier = self._since - sum(number >= first for number in self._refused)
        return earlier <= _MAX_EARLIER_SHARE * (first - self._overloaded_at)


def _walk(refused: list[int]) -> tuple[int, int]:
    """The request at which the walk last left zero, and its height at the newest refusal."""
    first, excess, before = refused[0], 0, refused[0]
    for number in refused:
        excess -= max(0, number - before - 1)
        if excess <= 0:
            first, excess = number, 0
        excess, before = excess + 1, number
    return first, excess
