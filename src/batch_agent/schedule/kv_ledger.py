"""KV ledger: which agents keep their context in the server's KV cache. Time is an argument; nothing here waits."""

import math
from collections.abc import Sequence
from dataclasses import field

from ..core.fast_dataclass import dataclass
from .estimators import CacheMissTracker, ContextGrowth, PrefillSpeed
from .kv_account import NO_USE, KvDemand, KvGrant, KvLearned, KvUse
from .kv_tiers import HEADROOM
from .reference_tree import Path, ReferenceTree, tokens_of
from .residency_leases import ResidencyLeases, Resident

_SHRINK = 0.95
_SHRINK_UNKNOWN = 0.9
"""Factor for an unknown capacity, which may be far below what the residents use."""
_GROW = 1.05


@dataclass(slots=True)
class LedgerCounts:
    """Counters for the scheduling report."""

    max_residents: int = 0
    evictions: int = 0
    """Residents that lost their residency during a tool call."""
    overcommitted: int = 0
    """Agents admitted beyond the capacity because the engine would have idled."""


@dataclass(slots=True)
class LedgerObservations:
    """What was observed of this worker's agents since the last transaction with the account of all workers."""

    turns: list[bool] = field(default_factory=list)
    """Whether each turn was a cache miss."""
    growths: list[float] = field(default_factory=list)
    """Tokens by which the context of each finished agent grew."""

    def drop(self, turns: int, growths: int) -> None:
        del self.turns[:turns], self.growths[:growths]


@dataclass(slots=True)
class KvLedger:
    """Adds up the contexts of the residents, counting the shared prefix and shared references once, and admits further
    agents while all of them fit, including their expected growth.

    A resident that waits for its tools keeps its residency on a lease, unless its tools are known to take longer. An
    expired lease may be taken by an agent that needs room, longest expired first; the evicted agent is admitted again
    when its tools return. The cache hits that the server reports correct the limit: cache misses shrink it, an episode
    without misses grows it back.

    If several workers use the server, each has a ledger, which counts the residents of the others by their figures in
    the account of the endpoint and admits agents within a grant. What agents show is then learned for all workers
    together (`learn`)."""

    capacity: int | None
    """Tokens; None if unknown: then residency is not limited until there are cache misses."""
    shared_tokens: float = 0.0
    """Tokens of the prefix that all prompts share."""
    prefill_speed: PrefillSpeed = field(default_factory=PrefillSpeed)
    cache_misses: CacheMissTracker = field(default_factory=CacheMissTracker)
    counts: LedgerCounts = field(default_factory=LedgerCounts)
    references: ReferenceTree = field(default_factory=ReferenceTree)
    others: KvUse = NO_USE
    """Use of the other workers."""
    grant: KvGrant | None = None
    """What may be admitted; None without other workers: whatever fits."""
    observations: LedgerObservations | None = None
    """None without other workers: what agents show is learned at once."""
    _agents: dict[str, Resident] = field(default_factory=dict)
    _residents: int = 0
    _own: float = 0.0
    _first: float = 0.0
    _limit: float | None = field(init=False)
    _leases: ResidencyLeases = field(default_factory=ResidencyLeases)
    _overcommitted_tokens: float = 0.0
    """Tokens of overcommitted residents."""
    _overcommit_changes: int = 0
    _context_growth: ContextGrowth = field(default_factory=ContextGrowth)
    _registered: int = 0
    _added_references: float = 0.0
    """Tokens that references of all agents added to the tree."""
    _referring: int = 0
    """Agents that have had references."""

    def __post_init__(self) -> None:
        self._limit = None if self.capacity is None else HEADROOM * self.capacity

    @property
    def residents(self) -> int:
        return self._residents

    @property
    def limit(self) -> float | None:
        """Tokens that residents may use, as corrected by cache misses."""
        return self._limit

    @property
    def all_residents(self) -> int:
        """Residents of all workers."""
        return self._residents + self.others.residents

    @property
    def reserved_tokens(self) -> float:
        """Tokens that the residents of all workers use, or will use after their expected growth."""
        return self._required(self._own, self._first, self._residents)

    @property
    def held_tokens(self) -> float:
        """This worker's part of the reserved tokens."""
        return self.reserved_tokens * self._residents / self.all_residents if self._residents else 0.0

    @property
    def growth(self) -> float:
        """Tokens by which an agent's context is expected to grow."""
        return self._context_growth.expected(self._first + self.others.first, self.all_residents)

    @property
    def may_ask_to_overcommit(self) -> bool:
        """Whether a transaction would grant it: another worker with a reserve may be busy without having said so."""
        return self.grant is not None and self._residents < self.grant.max_residents and not self.others.spare

    @property
    def use(self) -> KvUse:
        """Use of this worker."""
        return KvUse(
            self._residents,
            self._own,
            self._first,
            self.references.tokens,
            self._overcommitted_tokens,
            self._overcommit_changes,
            prefill_speed=self.prefill_speed.tokens_per_second or 0.0,
        )

    @property
    def learned(self) -> KvLearned:
        growth = self._context_growth
        return KvLearned(
            self._limit, self.capacity, *self.cache_misses.episode, growth.finished, growth.mean, growth.largest
        )

    def learn(self, learned: KvLearned | None, *, has_waiters: bool) -> None:
        """Learns from what all workers have learned, and then from the observations of this one. `has_waiters`: agents
        of any worker wait for residency."""
        if learned is not None:
            self._context_growth.merge(learned.finished, learned.mean_growth, learned.max_growth)
            self.cache_misses.set_episode(learned.reports_cache, learned.miss_rate, learned.turns)
            if learned.limit is not None:
                scale = self.capacity / learned.capacity if self.capacity and learned.capacity else 1.0
                self._limit = self._within_capacity(learned.limit * scale)
        if self.observations is not None:
            for growth in self.observations.growths:
                self._context_growth.observe(growth)
            for is_miss in self.observations.turns:
                self._judge(is_miss, has_waiters)

    def demand(self, waiters: Sequence[str], *, may_overcommit: bool) -> KvDemand:
        """Demand for a grant. `waiters`: agents of this worker that wait for residency, first ones first."""
        added, all_added, with_waiters = NO_USE, [], []
        for waiter in waiters:
            agent = self._agents[waiter]
            missing = self.references.missing(agent.references)
            added += KvUse(1, agent.own, agent.first, missing, busy=1, waiting=-1)
            all_added.append(added)
            own, first = self._own + added.own, self._first + added.first
            with_waiters.append(self._required(own, first, self._residents + added.residents, added.references))
        return KvDemand(self.reserved_tokens, with_waiters, all_added, self._limit, may_overcommit)

    @property
    def lease_seconds(self) -> float | None:
        """Duration of a residency lease: the time to compute as many tokens as the whole cache holds. This is the
        break-even point of the ski-rental problem: a longer lease costs more than recomputing the context, a shorter
        one too often costs both."""
        speed = self.tokens_per_second
        return None if self._limit is None or speed is None else self._limit / speed

    @property
    def tokens_per_second(self) -> float | None:
        """Prefill speed: the best measurement of any worker. Each sees only its part of what the server computes."""
        return max(self.prefill_speed.tokens_per_second or 0.0, self.others.prefill_speed) or None

    def max_concurrent(self, tokens: int) -> int | None:
        """How many contexts of the residents' mean size fit into `tokens`, including one that fits only in part, whose
        request waits at the server. None without residents."""
        used = self._own + self.references.tokens
        if not self._residents or used <= 0:
            return None
        fitting = (HEADROOM * tokens - self.shared_tokens) * self._residents / used
        return 1 if fitting <= 1 else math.ceil(fitting)

    def holds_new(self, agents: int) -> bool:
        """Whether this many new agents would fit in addition to the residents, if they grow as large."""
        if self._limit is None or not agents:
            return self.cache_misses.total == 0 or not agents
        if not self._residents:
            return False
        own, first = self._own / self._residents, self._first / self._residents
        return self._have_room(
            self._own + agents * own,
            self._first + agents * first,
            self._residents + agents,
            agents * self._new_references,
        )

    def fits_each(self, tokens: float) -> bool:
        """Whether the residents would fit with `tokens` more of their own."""
        return self._limit is None or self._used + self.all_residents * tokens <= self._limit

    def resize(self, capacity: int) -> None:
        """Changes a known capacity. What was learned about it stays; residents that no longer fit are evicted."""
        capacity = max(1, capacity)
        if not (self.capacity and self._limit) or capacity == self.capacity:
            return
        factor, self.capacity = capacity / self.capacity, capacity
        self._limit = min(self._limit * factor, HEADROOM * self.capacity)
        if not _SHRINK <= factor <= 1 / _SHRINK:
            self.cache_misses.reset()
        self._evict_own_overflow()

    def room_left(self, agent: str, source: "KvLedger | None" = None) -> float:
        """Share of the limit that would be left with this agent as a further resident; negative if it does not fit.
        `source`: the ledger that knows the agent, if it is another one."""
        if self._limit is None:
            return 1.0
        known = (source or self)._agents[agent]
        missing = self.references.missing(known.references)
        required = self._required(self._own + known.own, self._first + known.first, self._residents + 1, missing)
        return 1.0 - required / max(1.0, self._limit)

    def missing_references(self, agent: str, source: "KvLedger | None" = None) -> float:
        """Tokens of the agent's references that no other resident has. `source`: as for `room_left`."""
        known = (source or self)._agents[agent]
        return self.references.missing(known.references, own=int(known.is_resident and source in (None, self)))

    def is_cold(self, agent: str) -> bool:
        """Whether the agent's own text is to be computed again: it stands behind other references than before."""
        known = self._agents[agent]
        return known.is_cold and bool(known.references)

    def is_resident(self, agent: str) -> bool:
        known = self._agents.get(agent)
        return known is not None and known.is_resident

    def tokens(self, agent: str) -> int:
        """Tokens of the agent's whole context, as the server last counted them."""
        known = self._agents[agent]
        return int(known.own + self.shared_tokens + tokens_of(known.references)) if known.prompt else 0

    def register(self, agent: str, own: float) -> None:
        """Registers a new agent without residency. `own`: estimated tokens of its first prompt without the prefix."""
        self._registered += 1
        self._agents[agent] = Resident(own, own, self._registered)

    def admit(self, agent: str, now: float, *, overcommit: bool = False) -> bool:
        """Gives the agent residency if it fits, evicting residents with expired leases if that helps. `overcommit`:
        also if it does not fit."""
        known = self._agents[agent]
        if known.is_resident:
            return True
        if self.grant is not None and self._residents >= self.grant.max_residents:
            return False
        fits = self._fits(known)
        if not (fits or overcommit or self._make_room(known, now)):
            return False
        known.is_resident = True
        known.is_overcommitted, known.is_cold = overcommit and not fits, True
        self._add(known)
        self.counts.overcommitted += known.is_overcommitted
        self.counts.max_residents = max(self.counts.max_residents, self.all_residents)
        return True

    def on_usage(self, agent: str, prompt: int, cached: int, output: int, *, has_waiters: bool) -> None:
        """The server reported the exact size of the agent's context. `has_waiters`: agents wait for residency."""
        if not prompt:
            return  # the server does not count tokens
        known = self._agents[agent]
        self._check_cache(known, cached, has_waiters)
        references = tokens_of(known.references) if known.references else 0.0
        own = max(1.0, prompt + output - self.shared_tokens - references)
        first = own - output if known.prompt == 0 else known.first
        if known.is_resident:
            self._own += own - known.own
            self._first += first - known.first
        if known.is_resident and known.is_overcommitted:
            self._overcommitted_tokens += own - known.own
            self._overcommit_changes += 1
        known.own, known.first, known.prompt = own, first, prompt
        known.is_cold, known.overcommit_changes = False, self._all_overcommit_changes
        if own - first > self._context_growth.largest:
            self._context_growth.largest = own - first
        if self._limit is not None:
            self._evict_own_overflow()

    def on_compaction(self, agent: str, prompt: int) -> None:
        """The agent's context was compacted: its next prompt has about `prompt` tokens and is not in the cache."""
        known = self._agents[agent]
        known.is_cold = True
        own = max(1.0, prompt - self.shared_tokens - tokens_of(known.references))
        if own >= known.own:
            return
        if known.is_resident:
            self._subtract(known)
        known.own = own
        if known.is_resident:
            self._add(known)

    def on_references(self, agent: str, references: Path) -> None:
        """The agent's next prompt has these references. What stands behind a new one is not in the cache."""
        known = self._agents[agent]
        known.is_cold = True
        self._referring += not known.references
        if known.is_resident:
            before = self.references.tokens
            self.references.add(references)
            self.references.remove(known.references)
            self._added_references += max(0.0, self.references.tokens - before)
        known.references = references
        self._evict_own_overflow()

    def shares_references(self, agent: str) -> bool:
        """Whether the agent has references, and residents have all of them."""
        references = self._agents[agent].references
        return bool(references) and not self.references.missing(references)

    def pause(self, agent: str, now: float, expected: float | None) -> None:
        """The agent waits for its tools; `expected`: for how many seconds, None if unknown."""
        known = self._agents[agent]
        known.waiting_since = now
        if known.is_resident:
            lease = self.lease_seconds
            is_too_long = lease is not None and expected is not None and expected > lease
            self._leases.begin(agent, known, is_expired=is_too_long)

    def resume(self, agent: str) -> None:
        self._leases.end(agent)

    def remove(self, agent: str) -> None:
        known = self._agents.get(agent)
        if known is None:
            return
        self._leases.end(agent)
        del self._agents[agent]
        if known.prompt and self.observations is not None:
            self.observations.growths.append(known.own - known.first)
        elif known.prompt:
            self._context_growth.observe(known.own - known.first)
        if known.is_resident:
            self._subtract(known)

    def move(self, agent: str, target: "KvLedger") -> None:
        """The agent continues on another endpoint, without residency there, and without its context in the cache."""
        known = self._agents.pop(agent)
        self._leases.end(agent)
        if known.is_resident:
            self._subtract(known)
        target.register(agent, known.own)
        moved = target._agents[agent]
        moved.first, moved.prompt, moved.references, moved.is_cold = known.first, known.prompt, known.references, True

    def next_lease_end(self) -> float | None:
        """When the first active lease expires."""
        return self._leases.next_end(self.lease_seconds)

    def _fits(self, agent: Resident) -> bool:
        own, first = self._own + agent.own, self._first + agent.first
        return self._have_room(own, first, self._residents + 1, self.references.missing(agent.references))

    def _have_room(self, own: float, first: float, residents: int, new_references: float) -> bool:
        if self._limit is None:
            return True
        room = self._limit if self.grant is None else self.grant.tokens
        is_single = residents + self.others.residents == 1 and (self.grant is None or self.grant.overcommit)
        return is_single or self._required(own, first, residents, new_references) <= room

    def _required(self, own: float, first: float, residents: int, new_references: float = 0.0) -> float:
        """Tokens that the residents of all workers use, or will use after their expected growth."""
        others = self.others
        own, first, residents = own + others.own, first + others.first, residents + others.residents
        now = self.references.tokens + others.references + new_references
        later = max(now, residents * self._new_references)
        growth = self._context_growth.expected(first, residents)
        return self.shared_tokens + max(own + now, first + residents * growth + later)

    def _make_room(self, agent: Resident, now: float) -> bool:
        """Evicts residents with expired leases, if that is enough."""
        leases = self._leases
        leases.expire(self.lease_seconds, now)
        own, first = self._own - leases.expired_own + agent.own, self._first - leases.expired_first + agent.first
        missing = self.references.missing(agent.references)
        if not self._have_room(own, first, self._residents - leases.expired_count + 1, missing):
            return False
        while not (fits := self._fits(agent)) and (overdue := leases.oldest_expired()) is not None:
            self._evict(overdue)
        return fits

    def evict_for_others(self, now: float) -> None:
        """Evicts residents with expired leases, longest expired first, if that makes room for an agent of mean size
        that waits at another worker."""
        leases = self._leases
        leases.expire(self.lease_seconds, now)
        if self._limit is None or not leases.expired_count:
            return
        free = self._limit - self.others.spare - self.reserved_tokens / self.all_residents
        own, first = self._own - leases.expired_own, self._first - leases.expired_first
        if self._required(own, first, self._residents - leases.expired_count) > free:
            return
        while self.reserved_tokens > free and (overdue := leases.oldest_expired()) is not None:
            self._evict(overdue)

    def evict_overflow(self) -> None:
        """Evicts the youngest waiting residents while contexts exceed the limit, not counting overcommitted ones."""
        while self._limit is not None and self._used - self._all_overcommitted > self._limit:
            youngest = self._leases.youngest()
            if youngest is None:
                return
            self._evict(youngest)

    def _evict_own_overflow(self) -> None:
        """With other workers, an overflow is seen by all of them: the next transaction evicts."""
        if self.grant is None:
            self.evict_overflow()

    @property
    def _new_references(self) -> float:
        """Tokens that the references of an agent add to the tree, on average."""
        return self._added_references / self._referring if self._referring else 0.0

    @property
    def _used(self) -> float:
        return self.shared_tokens + self.references.tokens + self.others.references + self._own + self.others.own

    @property
    def _all_overcommitted(self) -> float:
        return self._overcommitted_tokens + self.others.overcommitted

    @property
    def _all_overcommit_changes(self) -> int:
        return self._overcommit_changes + self.others.overcommit_changes

    def _evict(self, agent: str) -> None:
        known = self._agents[agent]
        self._leases.end(agent)
        self._subtract(known)
        known.is_resident = False
        self.counts.evictions += 1

    def _check_cache(self, agent: Resident, cached: int, has_waiters: bool) -> None:
        if cached:
            self.cache_misses.observe(cached)
        if not (agent.prompt and agent.is_resident) or agent.is_cold:
            return
        is_miss = self.cache_misses.check_turn(cached, agent.prompt, self.shared_tokens)
        if (
            self._all_overcommitted >= 1 or agent.overcommit_changes != self._all_overcommit_changes
        ):  # not 0: rounding errors
            return  # overcommitted agents may have caused it
        if self.observations is not None:
            self.observations.turns.append(is_miss)
        else:
            self._judge(is_miss, has_waiters)

    def _judge(self, is_miss: bool, has_waiters: bool) -> None:
        verdict = self.cache_misses.verdict(is_miss, self.all_residents)
        shrink = _SHRINK_UNKNOWN if self.capacity is None else _SHRINK
        if verdict == "many" and self.all_residents > 1:  # a single agent is admitted regardless of the limit
            reserved = self.reserved_tokens + self.others.spare
            self._set_limit(min(self._limit or reserved, reserved) * shrink)
        elif verdict == "few" and has_waiters and self._limit is not None:
            self._set_limit(self._limit * _GROW)

    def _set_limit(self, limit: float) -> None:
        self._limit = self._within_capacity(limit)
        self.cache_misses.reset()

    def _within_capacity(self, limit: float) -> float:
        return limit if self.capacity is None else min(limit, HEADROOM * self.capacity)

    def _add(self, agent: Resident) -> None:
        self._residents += 1
        if agent.references:
            self.references.add(agent.references)
        self._own += agent.own
        self._first += agent.first
        if agent.is_overcommitted:
            self._overcommitted_tokens += agent.own
            self._overcommit_changes += 1

    def _subtract(self, agent: Resident) -> None:
        self._residents -= 1
        if agent.references:
            self.references.remove(agent.references)
        self._own -= agent.own
        self._first -= agent.first
        if agent.is_overcommitted:
            self._overcommitted_tokens -= agent.own
            self._overcommit_changes += 1
