"""KV ledger: which agents keep their context in the server's KV cache. Time is an argument; nothing here waits."""

from dataclasses import dataclass, field

from .cache_misses import CacheMissTracker
from .estimators import PrefillSpeed
from .kv_tiers import HEADROOM
from .reference_tree import Path, ReferenceTree, tokens_of
from .residency_leases import ResidencyLeases, Resident

_EXPECTED_GROWTH = 0.25
"""Assumed growth of a context, as a share of its first prompt, until it has been measured."""
_AVERAGED_AGENTS = 32
_SHRINK = 0.95
_SHRINK_UNKNOWN = 0.9
"""For an unknown capacity, which may be far below what the residents use."""
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
class KvLedger:
    """Adds up the contexts of the residents, counting the shared prefix and shared references once, and admits further
    agents while all of them fit, including their expected growth.

    A resident that waits for its tools keeps its residency on a lease, unless its tools are known to take longer. An
    expired lease may be taken by an agent that needs room, longest expired first; the evicted agent is admitted again
    when its tools return. The cache hits that the server reports correct the limit: cache misses shrink it, an episode
    without misses grows it back."""

    capacity: int | None
    """Tokens; None if unknown: then residency is not limited until there are cache misses."""
    shared_tokens: float = 0.0
    """Tokens of the prefix that all prompts share."""
    prefill_speed: PrefillSpeed = field(default_factory=PrefillSpeed)
    cache_misses: CacheMissTracker = field(default_factory=CacheMissTracker)
    counts: LedgerCounts = field(default_factory=LedgerCounts)
    references: ReferenceTree = field(default_factory=ReferenceTree)
    _agents: dict[str, Resident] = field(default_factory=dict)
    _residents: int = 0
    _own: float = 0.0
    _first: float = 0.0
    _limit: float | None = field(init=False)
    _leases: ResidencyLeases = field(default_factory=ResidencyLeases)
    _overcommitted_tokens: float = 0.0
    """Tokens of overcommitted residents."""
    _overcommit_changes: int = 0
    _mean_growth: float = 0.0
    _finished: int = 0
    _max_growth: float = 0.0
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
    def reserved_tokens(self) -> float:
        """Tokens that the residents use, or will use after their expected growth."""
        return self._required(self._own, self._first, self._residents)

    @property
    def required_capacity(self) -> float:
        """Tokens of capacity needed for the residents, given what was learned about the limit."""
        if not (self.capacity and self._limit and self._residents):
            return 0.0
        return self.reserved_tokens * self.capacity / self._limit

    @property
    def growth(self) -> float:
        """Tokens by which an agent's context is expected to grow."""
        return self._growth(self._first, self._residents)

    @property
    def lease_seconds(self) -> float | None:
        """Duration of a residency lease: the time to compute as many tokens as the whole cache holds. This is the
        break-even point of the ski-rental problem: a longer lease costs more than recomputing the context, a shorter
        one too often costs both."""
        if self._limit is None or self.prefill_speed.tokens_per_second is None:
            return None
        return self._limit / self.prefill_speed.tokens_per_second

    def max_concurrent(self, tokens: int) -> int | None:
        """How many contexts of the residents' mean size fit into `tokens`; None without residents."""
        used = self._own + self.references.tokens
        if not self._residents or used <= 0:
            return None
        return max(1, int((HEADROOM * tokens - self.shared_tokens) * self._residents / used))

    def holds_new(self, agents: int) -> bool:
        """Whether this many new agents would fit beside the residents, as large as these are expected to become."""
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
        return self._limit is None or self._used + self._residents * tokens <= self._limit

    def resize(self, capacity: int) -> None:
        """Changes a known capacity. What was learned about it stays; residents that no longer fit are evicted."""
        capacity = max(1, capacity)
        if not (self.capacity and self._limit) or capacity == self.capacity:
            return
        factor, self.capacity = capacity / self.capacity, capacity
        self._limit = min(self._limit * factor, HEADROOM * self.capacity)
        if not _SHRINK <= factor <= 1 / _SHRINK:
            self.cache_misses.reset()
        self._evict_overflow()

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
        fits = self._fits(known)
        if not (fits or overcommit or self._make_room(known, now)):
            return False
        known.is_resident = True
        known.is_overcommitted, known.is_cold = overcommit and not fits, True
        self._add(known)
        self.counts.overcommitted += known.is_overcommitted
        self.counts.max_residents = max(self.counts.max_residents, self._residents)
        return True

    def on_usage(self, agent: str, prompt: int, cached: int, output: int, *, has_waiters: bool) -> None:
        """The server reported the exact size of the agent's context. `has_waiters`: agents wait for residency."""
        if not prompt:
            return  # the server does not count tokens
        known = self._agents[agent]
        self._check_cache(known, cached, has_waiters)
        own = max(1.0, prompt + output - self.shared_tokens - tokens_of(known.references))
        first = own - output if known.prompt == 0 else known.first
        if known.is_resident:
            self._subtract(known)
        known.own, known.first, known.prompt = own, first, prompt
        known.is_cold, known.overcommit_changes = False, self._overcommit_changes
        if known.is_resident:
            self._add(known)
        if own - first > self._max_growth:
            self._max_growth = own - first
        self._evict_overflow()

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
        self._evict_overflow()

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
        if known.prompt:
            self._finished += 1
            self._mean_growth += (known.own - known.first - self._mean_growth) / min(self._finished, _AVERAGED_AGENTS)
        if known.is_resident:
            self._subtract(known)

    def next_lease_end(self) -> float | None:
        """When the first active lease expires."""
        return self._leases.next_end(self.lease_seconds)

    def _fits(self, agent: Resident) -> bool:
        own, first = self._own + agent.own, self._first + agent.first
        return self._have_room(own, first, self._residents + 1, self.references.missing(agent.references))

    def _have_room(self, own: float, first: float, residents: int, new_references: float) -> bool:
        if self._limit is None or residents == 1:
            return True
        return self._required(own, first, residents, new_references) <= self._limit

    def _required(self, own: float, first: float, residents: int, new_references: float = 0.0) -> float:
        """Tokens that residents use, or will use after their expected growth."""
        now = self.references.tokens + new_references
        later = max(now, residents * self._new_references)
        return self.shared_tokens + max(own + now, first + residents * self._growth(first, residents) + later)

    def _growth(self, first: float, residents: int) -> float:
        if self._finished:
            return self._mean_growth
        return max(_EXPECTED_GROWTH * first / residents if residents else 0.0, self._max_growth)

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

    def _evict_overflow(self) -> None:
        """Evicts the youngest waiting residents while contexts exceed the limit, not counting overcommitted ones."""
        while self._limit is not None and self._used - self._overcommitted_tokens > self._limit:
            youngest = self._leases.youngest()
            if youngest is None:
                return
            self._evict(youngest)

    @property
    def _new_references(self) -> float:
        """Tokens that the references of an agent add to the tree, on average."""
        return self._added_references / self._referring if self._referring else 0.0

    @property
    def _used(self) -> float:
        return self.shared_tokens + self.references.tokens + self._own

    def _evict(self, agent: str) -> None:
        known = self._agents[agent]
        self._leases.end(agent)
        self._subtract(known)
        known.is_resident = False
        self.counts.evictions += 1

    def _check_cache(self, agent: Resident, cached: int, has_waiters: bool) -> None:
        self.cache_misses.observe(cached)
        if not (agent.prompt and agent.is_resident) or agent.is_cold:
            return
        is_miss = self.cache_misses.check_turn(cached, agent.prompt, self.shared_tokens)
        if (
            self._overcommitted_tokens >= 1 or agent.overcommit_changes != self._overcommit_changes
        ):  # not 0: rounding errors add up
            return  # overcommitted agents may have caused it
        verdict = self.cache_misses.verdict(is_miss, self._residents)
        shrink = _SHRINK_UNKNOWN if self.capacity is None else _SHRINK
        if verdict == "many" and self._residents > 1:  # a single agent is admitted regardless of the limit
            self._set_limit(min(self._limit or self.reserved_tokens, self.reserved_tokens) * shrink)
        elif verdict == "few" and has_waiters and self._limit is not None:
            self._set_limit(self._limit * _GROW)

    def _set_limit(self, limit: float) -> None:
        self._limit = limit if self.capacity is None else min(limit, HEADROOM * self.capacity)
        self.cache_misses.reset()

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
