"""KV account of an endpoint: what the residents of each worker use, and what all workers learned about the cache.

All workers that use the endpoint share one account. A worker reads it, decides with the figures of all, and writes its
own entry back; if another worker was faster, it decides again. Between two such transactions a worker admits agents
within its grant. Pure: time is an argument."""

import math
from collections.abc import Mapping, Sequence

from ..core.fast_dataclass import dataclass

_RESERVE_DIVISOR = 2
"""Of the free tokens that no agent waits for, a worker reserves its equal share of this fraction, so that it need not
change the account for each agent."""


@dataclass(frozen=True, slots=True)
class KvUse:
    """Residents of one worker, or of several together. Tokens are without the prefix that all prompts share."""

    residents: int = 0
    own: float = 0.0
    """Tokens of their contexts, without references."""
    first: float = 0.0
    """Tokens of their first prompts."""
    references: float = 0.0
    """Tokens of their references."""
    overcommitted: float = 0.0
    """Tokens of overcommitted residents."""
    overcommit_changes: int = 0
    busy: int = 0
    """Agents that wait for a slot or have a request in flight."""
    waiting: int = 0
    """Agents that wait for residency."""
    spare: float = 0.0
    """Tokens that are reserved for agents to come. The other figures of such a worker may be old."""
    prefill_speed: float = 0.0
    """Tokens per second; 0: not measured. Of several workers the best measurement."""

    def __add__(self, other: "KvUse") -> "KvUse":
        return KvUse(
            self.residents + other.residents,
            self.own + other.own,
            self.first + other.first,
            self.references + other.references,
            self.overcommitted + other.overcommitted,
            self.overcommit_changes + other.overcommit_changes,
            self.busy + other.busy,
            self.waiting + other.waiting,
            self.spare + other.spare,
            max(self.prefill_speed, other.prefill_speed),
        )


NO_USE = KvUse()


@dataclass(frozen=True, slots=True)
class KvGrant:
    """What a worker may admit until its next transaction."""

    tokens: float = 0.0
    """Tokens that the residents of all workers may need together, by this worker's figures of the others."""
    max_residents: float = math.inf
    """Residents of this worker."""
    overcommit: bool = False
    """One agent more, even if it does not fit."""


NO_GRANT = KvGrant()


@dataclass(frozen=True, slots=True)
class KvLearned:
    """What was learned about the cache and about the contexts, for all workers together."""

    limit: float | None
    reports_cache: bool
    miss_rate: float
    turns: int
    """Turns of the current episode of cache-miss tracking."""
    finished: int
    """Agents whose growth was measured."""
    mean_growth: float
    max_growth: float


@dataclass(frozen=True, slots=True)
class KvEntry:
    """A worker's entry."""

    until: float
    """The entry expires then, unless it is renewed."""
    use: KvUse
    starved_since: float | None = None
    """Since when agents of the worker wait while it has no resident."""


@dataclass(frozen=True, slots=True)
class KvAccount:
    """The account, without expired entries."""

    entries: Mapping[str, KvEntry]
    learned: KvLearned | None = None

    def others(self, worker: str) -> KvUse:
        """Use of all other workers."""
        return sum((entry.use for name, entry in self.entries.items() if name != worker), NO_USE)

    def with_entry(self, worker: str, entry: KvEntry, learned: KvLearned) -> "KvAccount":
        return KvAccount({**self.entries, worker: entry}, learned)

    def without(self, worker: str) -> "KvAccount":
        return KvAccount({name: entry for name, entry in self.entries.items() if name != worker}, self.learned)

    def to_json(self) -> list[object]:
        learned = None if self.learned is None else _values(self.learned)
        entries = {name: [each.until, each.starved_since, _values(each.use)] for name, each in self.entries.items()}
        return [entries, learned]

    @classmethod
    def from_json(cls, data: Sequence[object] | None, now: float) -> "KvAccount":
        """Raises ValueError or TypeError."""
        if data is None:
            return cls({})
        entries, learned = data
        if not isinstance(entries, dict) or not isinstance(learned, list | None):
            raise TypeError("an account is a table of entries and a list of learned values")
        found = {name: KvEntry(until, KvUse(*use), since) for name, (until, since, use) in entries.items()}
        alive = {name: entry for name, entry in found.items() if entry.until > now}
        return cls(alive, None if learned is None else KvLearned(*learned))


def _values(each: KvUse | KvLearned) -> list[object]:
    return [getattr(each, name) for name in each.__dataclass_fields__]


@dataclass(frozen=True, slots=True)
class KvDemand:
    """What a worker needs, by its ledger and the figures of the others."""

    required: float
    """Tokens that the residents of all workers need."""
    with_waiters: Sequence[float]
    """The same with the first waiter of this worker, with its first two, and so on."""
    added: Sequence[KvUse]
    """What is added to the use of this worker by its first waiter, by its first two, and so on."""
    limit: float | None
    may_overcommit: bool = False
    """The engine has so little to do that one agent may be admitted beyond the limit."""


def grant(account: KvAccount, worker: str, mine: KvUse, demand: KvDemand, now: float) -> tuple[KvGrant, KvEntry]:
    """Grant of this worker, and its entry without an expiry, which must be written before the grant takes effect.

    Room that is free goes to the waiters of any worker; a worker that has more than its fair share takes none while
    another worker with waiters has less. Without any waiters, each worker reserves some of the free room."""
    others, rest = account.others(worker), account.entries.keys() - {worker}
    since = _starved_since(account.entries.get(worker), mine, now)
    if demand.limit is None:
        return KvGrant(math.inf), KvEntry(0.0, mine, since)
    free = demand.limit - others.spare
    fitting = sum(required <= free for required in demand.with_waiters)
    is_single = not (fitting or mine.residents or others.residents or others.spare) and bool(demand.with_waiters)
    fitting += is_single  # a single agent is admitted whatever its size
    cap = _max_residents(account, worker, mine, fitting, since)
    admitted = int(max(0, min(fitting, cap - mine.residents)))
    needed, spare = max([demand.required, *demand.with_waiters[:admitted]]), 0.0
    if not rest:
        spare = max(0.0, free - needed)
    elif admitted == len(demand.with_waiters) and not others.waiting:
        spare = max(0.0, free - needed) / (_RESERVE_DIVISOR * (len(rest) + 1))
    overcommit = demand.may_overcommit and not (admitted or others.spare) and mine.residents < cap
    added = demand.added[max(admitted, overcommit) - 1] if admitted or overcommit else NO_USE
    if overcommit:
        added += KvUse(overcommitted=added.own)
    granted = KvGrant(min(needed + spare, free), cap, overcommit or (is_single and admitted > 0))
    return granted, KvEntry(0.0, mine + added + KvUse(spare=spare), since)


def _starved_since(before: KvEntry | None, mine: KvUse, now: float) -> float | None:
    if mine.residents or not mine.waiting:
        return None
    return now if before is None or before.starved_since is None else before.starved_since


def _max_residents(account: KvAccount, worker: str, mine: KvUse, fitting: int, since: float | None) -> float:
    """Residents that this worker may have while other workers with waiters have less than their fair share."""
    waiting = [each for name, each in account.entries.items() if name != worker and each.use.waiting]
    if not waiting:
        return math.inf
    contended = mine.residents + fitting + sum(each.use.residents for each in waiting)
    share = contended / (len(waiting) + 1)
    if share < 1.0:  # workers take turns: those without a resident first, longest wait first
        starved = [each.starved_since for each in waiting if each.starved_since is not None]
        if not starved:
            return math.inf
        return 1.0 if since is not None and since <= min(starved) and not mine.residents else 0.0
    if any(each.use.residents < math.floor(share) for each in waiting):
        return math.ceil(share)
    return math.inf
