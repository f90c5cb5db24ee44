"""What each of several workers may use of something that they share, and spend of a budget. Nobody decides for all:
each works out its own part from what all have said, and holds no more than is not held by others."""

from collections.abc import Iterable, Mapping, Sequence

from ..core.fast_dataclass import dataclass
from .budget import Amount

_KEPT = 4
"""Who wants nothing keeps one all the same, for work that comes, where there are so many for each worker."""
_GRAINS = 16
"""Wants are counted in such parts of the total: a little more or less moves nothing."""
_LONG = 5.0
"""Seconds after which a worker that has nothing goes before those that have something."""
_RESERVE = 16
"""A worker has leased ahead no more than its part of one in so many of what is left of the budget."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a worker makes of something that is shared: requests in flight, or tokens in a KV cache."""

    total: int | None
    """For all workers together; None where nothing limits it but what each finds out by itself."""
    used: int
    is_short: bool
    """Somebody waits for more."""


@dataclass(frozen=True, slots=True)
class SlotClaim:
    """What a worker has said of its demand."""

    held: int
    """It uses no more than this before it says otherwise."""
    used: int
    wants: int | None
    """None: as much as there is."""
    total: int | None
    since: float
    """When it began to hold something, or to hold nothing."""


def demand_for(demand: Demand, before: int) -> int | None:
    """`before`: what it had use for the last time. Who needed more a moment ago may do so again."""
    if demand.is_short:
        return None
    grain = max(1, (demand.total or 0) // _GRAINS)
    return max(-(-demand.used // grain) * grain, before // 2)


def total_of(claims: Iterable[SlotClaim]) -> int | None:
    """What the most careful of the workers takes it to be."""
    return min((claim.total for claim in claims if claim.total is not None), default=None)


def allocate(claims: Mapping[str, SlotClaim], worker: str, now: float) -> int | None:
    """What this one of the workers may use from now on; None where nothing is limited. It may be put into force as soon
    as all can read that it is held. What others use, or still might, is never part of it."""
    total = total_of(claims.values())
    if total is None:
        return None
    fair, held = fair_shares(claims, total, now), claims[worker].held
    if fair[worker] > held:
        free = total - sum(claim.held for name, claim in claims.items() if name != worker)
        return max(held, min(fair[worker], free))
    is_needed = sum(claim.held for claim in claims.values()) > total or any(
        _lacks(claim, fair[name]) for name, claim in claims.items() if name != worker
    )
    return fair[worker] if is_needed else held


def fair_shares(claims: Mapping[str, SlotClaim], total: int, now: float) -> dict[str, int]:
    """Equal parts for all who want, and what one does not want for the others. Where there are fewer than workers that
    want some, they take turns."""
    kept = 1 if total >= _KEPT * len(claims) else 0
    wants = {name: _most(claim.wants, kept) for name, claim in claims.items()}
    order = sorted(claims, key=lambda name: (*_precedence(claims[name], now), name))
    asking = [name for name in order if wants[name] > 0]
    parts = dict.fromkeys(order, 0)
    if total < len(asking):
        return {**parts, **dict.fromkeys(asking[:total], 1)}
    last_first = asking[::-1]
    for number, name in enumerate(sorted(last_first, key=lambda name: wants[name])):
        parts[name] = int(min(wants[name], total // (len(asking) - number)))
        total -= parts[name]
    for number, name in enumerate(order[::-1]):
        more = total // (len(order) - number)
        parts[name] += more
        total -= more
    return parts


def _most(wants: int | None, kept: int) -> float:
    return float("inf") if wants is None else max(wants, kept)


def _precedence(claim: SlotClaim, now: float) -> tuple[int, float]:
    """Who has had nothing for long, longest first; who has some, the last to get it first; who has nothing."""
    if claim.held:
        return 1, -claim.since
    return (0 if now - claim.since >= _LONG else 2), claim.since


def _lacks(claim: SlotClaim, fair: int) -> bool:
    return claim.held < fair and (claim.wants is None or claim.wants > claim.held)


@dataclass(frozen=True, slots=True)
class BudgetClaim:
    """What a worker has said of its part of the budget."""

    spent: Amount
    leased: Amount
    """What it spends will not come to more than this before it says otherwise; it counts as spent if it is not heard
    of any more."""
    waits: bool
    """It has requests for which there was not enough."""
    is_alive: bool = True

    @property
    def at_least(self) -> Amount:
        """What will have been spent, whatever comes back."""
        return self.spent if self.is_alive else self.leased


def lease(
    most: Amount,
    before: Amount,
    others: Sequence[BudgetClaim],
    taken: Amount,
    needs: Sequence[Amount],
    reserve: int = _RESERVE,
) -> tuple[Amount, bool]:
    """What a worker may spend that has spent or reserved `taken` and waits for `needs`, and whether some of these did
    not fit. Where nobody waits it gets some more, its part of one in `reserve` of what is left: to ask for each request
    would take too long."""
    committed = sum((share.leased for share in others), before)
    leased, is_short = taken, False
    for need in needs:
        if (committed + (leased + need)).fits(most):
            leased += need
        else:
            is_short = True
    if not is_short and not any(share.waits and share.is_alive for share in others):
        left, workers = most - (committed + leased), 1 + sum(share.is_alive for share in others)
        leased += left.part(reserve * workers)
    return leased, is_short
