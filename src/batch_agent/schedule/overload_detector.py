"""Sequential test for refusals: whether a server wants less from everybody, or turned single requests away.

A single refusal says little: many services refuse a share of requests at random, whatever their number. A server that
is over a limit refuses one request after the other, because each refusal frees a slot at once for the next request
that it refuses. So the test asks whether most requests are refused. It is a random walk over the requests in the order
in which they were sent: one up for each refusal, one down for every other request, never below zero (a CUSUM test of
a rate of a quarter against one of three quarters). Where a fifth is refused at random the walk reaches `_MOST` once in
two million requests; where all are, after `_MOST` of them."""

from bisect import insort
from dataclasses import dataclass, field

_MOST = 10
"""Refusals in excess of other requests."""
_MOST_AGAIN = 4
"""The same, for a server that was just seen to have a limit: it is likely to be met again."""
_FEW = 0.15
"""Of the requests since then, refused: more are no sign of a limit, for one refuses none as long as it is not met."""
_MEMORY = 200
"""Requests after which a limit that was not met again is forgotten."""
_KEPT = 4 * _MOST
"""Refusals that the walk is computed from."""


@dataclass(slots=True)
class OverloadDetector:
    """Requests are known by their numbers, which rise as they are sent. What has no answer yet counts as taken: answers
    take longer than refusals, so the order in which both arrive says little."""

    _refused: list[int] = field(default_factory=list)
    """In order."""
    _met: int | None = None
    """The newest request when most of them were last refused. What was sent before it says nothing new."""
    _since: int = 0
    """Refusals of later requests."""

    def is_news(self, request: int) -> bool:
        """Whether it was sent after what is known of the last limit that was met."""
        return self._met is None or request > self._met

    def are_most(self, request: int, newest: int) -> bool:
        """The request of this number was refused, which is news; `newest`: the number of the last one that was sent.
        Whether most of those sent about then were refused, too."""
        insort(self._refused, request)
        del self._refused[:-_KEPT]
        self._since += 1
        first, excess = _walk(self._refused)
        if excess < (_MOST_AGAIN if self._is_likely(first) else _MOST):
            return False
        self._met, self._since = newest, 0
        self._refused.clear()
        return True

    def _is_likely(self, first: int) -> bool:
        """That refusals since this one are of a limit that was met before."""
        if self._met is None or first - self._met > _MEMORY:
            return False
        earlier = self._since - sum(number >= first for number in self._refused)
        return earlier <= _FEW * (first - self._met)


def _walk(refused: list[int]) -> tuple[int, int]:
    """Where the walk last left zero, and how high it is with the newest refusal."""
    first, excess, before = refused[0], 0, refused[0]
    for number in refused:
        excess -= max(0, number - before - 1)
        if excess <= 0:
            first, excess = number, 0
        excess, before = excess + 1, number
    return first, excess
