"""Fair shares of a limit or a budget among workers.

There is no central decision: each worker computes its own quota from the claims of all workers, and holds no more than
what the other workers do not hold."""

from collections.abc import Iterable, Mapping, Sequence

from ..core.fast_dataclass import dataclass
from .budget import Amount

_KEEP_ONE_RATIO = 4
"""A worker without demand still keeps one unit for new work, if there are this many units per worker."""
_DEMAND_STEPS = 16
"""Demand is rounded up to this fraction of the total, so that small changes move nothing."""
_STARVED_SECONDS = 5.0
"""Seconds after which a worker that holds nothing goes before workers that hold something."""
_RESERVE_DIVISOR = 16
"""A worker leases ahead no more than its fair share of this fraction of the remaining budget."""


@dataclass(frozen=True, slots=True)
class Demand:
    """A worker's use of the slots of a server."""

    total: int | None
    """Limit for all workers together; None where each worker finds its own limit."""
    used: int
    is_short: bool
    """Agents of this worker wait for more."""


@dataclass(frozen=True, slots=True)
class SlotClaim:
    """A worker's published claim on a shared limit."""

    held: int
    """The worker uses no more than this until it publishes another claim."""
    used: int
    wants: int | None
    """None: as much as possible."""
    total: int | None
    since: float
    """When the worker began to hold something, or to hold nothing."""


def demand_for(demand: Demand, before: int) -> int | None:
    """What a worker wants; None: as much as possible. `before`: what it wanted last time. Demand falls gradually,
    because a higher one may return in a moment."""
    if demand.is_short:
        return None
    grain = max(1, (demand.total or 0) // _DEMAND_STEPS)
    return max(-(-demand.used // grain) * grain, before // 2)


def total_of(claims: Iterable[SlotClaim]) -> int | None:
    """The lowest limit that any worker assumes."""
    return min((claim.total for claim in claims if claim.total is not None), default=None)


def allocate(claims: Mapping[str, SlotClaim], worker: str, now: float) -> int | None:
    """Quota of this worker from now on; None if there is no limit. It may take effect as soon as all workers can read
    the claim. It never includes what other workers use or still may use."""
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
    """Max-min fair shares: equal shares for all workers with demand, and what one does not want for the others. With
    fewer units than such workers, they take turns."""
    kept = 1 if total >= _KEEP_ONE_RATIO * len(claims) else 0
    wants = {name: _max_wanted(claim.wants, kept) for name, claim in claims.items()}
    order = sorted(claims, key=lambda name: (*_precedence(claims[name], now), name))
    wanting = [name for name in order if wants[name] > 0]
    shares = dict.fromkeys(order, 0)
    if total < len(wanting):
        return {**shares, **dict.fromkeys(wanting[:total], 1)}
    last_first = wanting[::-1]
    for number, name in enumerate(sorted(last_first, key=lambda name: wants[name])):
        shares[name] = int(min(wants[name], total // (len(wanting) - number)))
        total -= shares[name]
    for number, name in enumerate(order[::-1]):
        more = total // (len(order) - number)
        shares[name] += more
        total -= more
    return shares


def _max_wanted(wants: int | None, kept: int) -> float:
    return float("inf") if wants is None else max(wants, kept)


def _precedence(claim: SlotClaim, now: float) -> tuple[int, float]:
    """Workers that have held nothing for long, longest first; then holders, most recent first; then the rest."""
    if claim.held:
        return 1, -claim.since
    return (0 if now - claim.since >= _STARVED_SECONDS else 2), claim.since


def _lacks(claim: SlotClaim, fair: int) -> bool:
    return claim.held < fair and (claim.wants is None or claim.wants > claim.held)


@dataclass(frozen=True, slots=True)
class BudgetClaim:
    """A worker's published claim on a shared budget."""

    spent: Amount
    leased: Amount
    """The worker spends no more than this in total until it publishes another claim. If the worker dies, all of it
    counts as spent."""
    waits: bool
    """Requests of this worker wait for budget."""
    is_alive: bool = True

    @property
    def at_least(self) -> Amount:
        """What has been spent, or must be assumed to be."""
        return self.spent if self.is_alive else self.leased


def lease(
    limit: Amount,
    before: Amount,
    others: Sequence[BudgetClaim],
    committed_here: Amount,
    needs: Sequence[Amount],
    reserve: int = _RESERVE_DIVISOR,
) -> tuple[Amount, bool]:
    """What a worker may spend in total, and whether some of its `needs` did not fit. It has spent or reserved
    `committed_here`; earlier runs have spent `before`. If no worker waits, it also leases its share of one in `reserve`
    of the remainder ahead, since a lease for each request would take too long."""
    committed = sum((share.leased for share in others), before)
    leased, is_short = committed_here, False
    for need in needs:
        if (committed + (leased + need)).fits(limit):
            leased += need
        else:
            is_short = True
    if not is_short and not any(share.waits and share.is_alive for share in others):
        left, workers = limit - (committed + leased), 1 + sum(share.is_alive for share in others)
        leased += left.fraction(reserve * workers)
    return leased, is_short
