"""How large the next list of an endpoint should be that comes for more work, so that all finish together."""

from collections.abc import Sequence
from dataclasses import dataclass

_PARTS = 2.0
"""Of what an endpoint would have to do until the end, it gets one in so many at a time: guided self-scheduling. The
lists shrink towards the end, where a wrong speed costs most; a half keeps their number low (each list is a request,
and a server is quicker with long ones) and can be wrong by a factor of two before anybody ends late."""

_UNKNOWN = 0.125
"""Of an even part, for an endpoint whose speed is not known: one that is eight times slower than the others is still
done when they are."""


@dataclass(frozen=True, slots=True)
class Hand:
    """An endpoint that works on what is left."""

    speed: float
    busy: float
    """Weight that it has still to do."""


def share(own: Hand, others: Sequence[Hand], left: float, least: float, *, is_known: bool) -> float:
    """A weight of at least `least` and at most what is left; or 0, if the others are done with all of it before this
    one would be with the least. Who is quickest is never told so, so the rest does not stay where it is."""
    least = min(least, left)
    if others and (own.busy + least) / own.speed > _end_without(others, left, least):
        return 0.0
    speeds = own.speed + sum(other.speed for other in others)
    until_the_end = (left + own.busy + sum(other.busy for other in others)) / speeds
    part = (own.speed * until_the_end - own.busy) / _PARTS
    if not is_known:
        part = min(part, _UNKNOWN * left / (1 + len(others)))
    return min(left, max(least, part))


def _end_without(others: Sequence[Hand], left: float, least: float) -> float:
    """Seconds, with the last piece begun just before the end by the quickest."""
    work = left + sum(other.busy for other in others)
    return work / sum(other.speed for other in others) + least / max(other.speed for other in others)
