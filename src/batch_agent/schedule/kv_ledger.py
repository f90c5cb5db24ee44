"""Which agents keep their context in the server's KV cache. Time is an argument; nothing here waits."""

from dataclasses import dataclass, field

from .cache_misses import CacheMissTracker
from .estimators import PrefillSpeed
from .residency_leases import ResidencyLeases, Resident

_LIKELY_GROWTH = 0.25
"""By how much of its first prompt an agent is taken to grow before any has shown it."""
_REMEMBERED = 32
_LESS = 0.9
_MORE = 1.05
_HEADROOM = 0.9
"""Of the capacity: what agents leave behind when they end is younger than the contexts of those that wait for their
tools, and an engine that throws out the oldest first throws those out before it."""


@dataclass(slots=True)
class LedgerCounts:
    """What happened, for whoever wants to see it."""

    most_residents: int = 0
    gave_up: int = 0
    """Places that were given up during a tool wait."""
    guests: int = 0
    """Agents that were let in beyond the capacity, because the engine had nothing to do."""


@dataclass(slots=True)
class KvLedger:
    """Adds up the contexts of the agents under way, what they share counted once, and lets further ones in while all
    of them, grown as agents have been seen to grow, fit.

    A resident that waits for its tools keeps its place on lease: for as long as the place is worth it, and not at all
    if its tools are known to take longer. After that the place goes to whoever needs it, the longest overdue first,
    and its agent asks again when it comes back. What the server reports of its cache corrects the capacity: turns that
    lost their context shrink it, an episode of clean ones grows it back."""

    capacity: int | None
    """Tokens; None where nobody knows: then nothing is limited until turns are seen to lose their context."""
    shared: float = 0.0
    """Tokens that all prompts begin with."""
    speed: PrefillSpeed = field(default_factory=PrefillSpeed)
    losses: CacheMissTracker = field(default_factory=CacheMissTracker)
    counts: LedgerCounts = field(default_factory=LedgerCounts)
    _agents: dict[str, Resident] = field(default_factory=dict)
    _residents: int = 0
    _own: float = 0.0
    _first: float = 0.0
    _limit: float | None = field(init=False)
    _leases: ResidencyLeases = field(default_factory=ResidencyLeases)
    _guests: float = 0.0
    """Tokens of guests."""
    _disturbances: int = 0
    _grown: float = 0.0
    _finished: int = 0
    _most_grown: float = 0.0
    _orders: int = 0

    def __post_init__(self) -> None:
        self._limit = None if self.capacity is None else _HEADROOM * self.capacity

    @property
    def residents(self) -> int:
        return self._residents

    @property
    def limit(self) -> float | None:
        """Tokens that residents may hold, as far as experience goes."""
        return self._limit

    @property
    def held(self) -> float:
        """Tokens that the residents hold, or will when they have grown."""
        return self.shared + max(self._own, self._first + self._residents * self.growth)

    @property
    def needs(self) -> float:
        """Tokens of capacity that it takes to hold this, as far as experience goes."""
        if not (self.capacity and self._limit and self._residents):
            return 0.0
        return self.held * self.capacity / self._limit

    @property
    def growth(self) -> float:
        """Tokens by which an agent's context is expected to grow in its life."""
        return self._growth(self._first, self._residents)

    @property
    def rent(self) -> float | None:
        """Seconds for which it is worth to keep a place that nobody uses: as long as it takes to compute what the
        whole cache holds. Who keeps it longer has lost more than computing the context again would cost, who gives
        it up earlier too often pays both."""
        if self._limit is None or self.speed.tokens_per_second is None:
            return None
        return self._limit / self.speed.tokens_per_second

    def fitting(self, tokens: int) -> int | None:
        """How many contexts like those of the residents fit into so many tokens; None before there is one."""
        if not self._residents or self._own <= 0:
            return None
        return max(1, int((_HEADROOM * tokens - self.shared) * self._residents / self._own))

    def resize(self, capacity: int) -> None:
        """Another part of a known capacity is for these agents. What was learned of it stays, and places that are too
        many now are given up as where contexts grow."""
        capacity = max(1, capacity)
        if not (self.capacity and self._limit) or capacity == self.capacity:
            return
        times, self.capacity = capacity / self.capacity, capacity
        self._limit = min(self._limit * times, _HEADROOM * self.capacity)
        if not _LESS <= times <= 1 / _LESS:
            self.losses.begin_anew()
        self._shed_overflow()

    def is_resident(self, agent: str) -> bool:
        known = self._agents.get(agent)
        return known is not None and known.is_resident

    def tokens(self, agent: str) -> int:
        """Its whole context as the server last counted it."""
        known = self._agents[agent]
        return int(known.own + self.shared) if known.prompt else 0

    def begin(self, agent: str, own: float) -> None:
        """A new agent, by what its first prompt is taken to hold beside the shared part. It has no place yet."""
        self._orders += 1
        self._agents[agent] = Resident(own, own, self._orders)

    def let_in(self, agent: str, now: float, *, as_guest: bool = False) -> bool:
        """Gives the agent a place if there is one, taking overdue ones where that helps."""
        known = self._agents[agent]
        if known.is_resident:
            return True
        fits = self._fits(known)
        if not (fits or as_guest or self._make_room(known, now)):
            return False
        known.is_resident = True
        known.is_guest, known.is_new = as_guest and not fits, True
        self._count_place(known)
        self.counts.guests += known.is_guest
        self.counts.most_residents = max(self.counts.most_residents, self._residents)
        return True

    def heard(self, agent: str, prompt: int, cached: int, output: int, *, is_crowded: bool) -> None:
        """The exact size of its context, from the server. `is_crowded`: others wait for a place."""
        if not prompt:
            return  # a server that counts no tokens says nothing of the size
        known = self._agents[agent]
        self._judge_cache(known, cached, is_crowded)
        own = max(1.0, prompt + output - self.shared)
        first = own - output if known.prompt == 0 else known.first
        if known.is_resident:
            self._forget_place(known)
        known.own, known.first, known.prompt = own, first, prompt
        known.is_new, known.disturbed = False, self._disturbances
        if known.is_resident:
            self._count_place(known)
        if own - first > self._most_grown:
            self._most_grown = own - first
        self._shed_overflow()

    def shrank(self, agent: str, prompt: int) -> None:
        """Its context was rewritten: the next prompt has about so many tokens, and is not in the cache."""
        known = self._agents[agent]
        known.is_new = True
        own = max(1.0, prompt - self.shared)
        if own >= known.own:
            return
        if known.is_resident:
            self._forget_place(known)
        known.own = own
        if known.is_resident:
            self._count_place(known)

    def pause(self, agent: str, now: float, likely: float | None) -> None:
        """It waits for its tools, likely for so many seconds; None where nobody knows."""
        known = self._agents[agent]
        known.waits_since = now
        if known.is_resident:
            rent = self.rent
            self._leases.begin(agent, known, is_over=rent is not None and likely is not None and likely > rent)

    def resume(self, agent: str) -> None:
        self._leases.end(agent)

    def leave(self, agent: str) -> None:
        known = self._agents.get(agent)
        if known is None:
            return
        self._leases.end(agent)
        del self._agents[agent]
        if known.prompt:
            self._finished += 1
            self._grown += (known.own - known.first - self._grown) / min(self._finished, _REMEMBERED)
        if known.is_resident:
            self._forget_place(known)

    def next_lease_end(self) -> float | None:
        """When a place may be given up, at the earliest."""
        return self._leases.next_end(self.rent)

    def _fits(self, agent: Resident) -> bool:
        return self._have_room(self._own + agent.own, self._first + agent.first, self._residents + 1)

    def _have_room(self, own: float, first: float, residents: int) -> bool:
        if self._limit is None or residents == 1:
            return True
        return self.shared + max(own, first + residents * self._growth(first, residents)) <= self._limit

    def _growth(self, first: float, residents: int) -> float:
        if self._finished:
            return self._grown
        return max(_LIKELY_GROWTH * first / residents if residents else 0.0, self._most_grown)

    def _make_room(self, agent: Resident, now: float) -> bool:
        """Takes overdue places, if they are enough."""
        leases = self._leases
        leases.lapse(self.rent, now)
        own, first = self._own - leases.over_own + agent.own, self._first - leases.over_first + agent.first
        if not self._have_room(own, first, self._residents - leases.over + 1):
            return False
        while not (fits := self._fits(agent)) and (overdue := leases.longest_over()) is not None:
            self._give_up(overdue)
        return fits

    def _shed_overflow(self) -> None:
        """Contexts grew beyond the capacity, guests apart: the youngest of those that wait for their tools lose their
        places."""
        while self._limit is not None and self.shared + self._own - self._guests > self._limit:
            youngest = self._leases.youngest()
            if youngest is None:
                return
            self._give_up(youngest)

    def _give_up(self, agent: str) -> None:
        known = self._agents[agent]
        self._leases.end(agent)
        self._forget_place(known)
        known.is_resident = False
        self.counts.gave_up += 1

    def _judge_cache(self, agent: Resident, cached: int, is_crowded: bool) -> None:
        self.losses.saw(cached)
        if not (agent.prompt and agent.is_resident) or agent.is_new:
            return
        is_lost = self.losses.is_lost(cached, agent.prompt, self.shared)
        if self._guests >= 1 or agent.disturbed != self._disturbances:  # not 0: sums of floats leave dust
            return  # it may be theirs
        verdict = self.losses.judge(is_lost, self._residents)
        if verdict == "many" and self._residents > 1:  # a lone one is let in whatever the limit
            self._change(min(self._limit or self.held, self.held) * _LESS)
        elif verdict == "few" and is_crowded and self._limit is not None:
            self._change(self._limit * _MORE)

    def _change(self, limit: float) -> None:
        self._limit = limit if self.capacity is None else min(limit, _HEADROOM * self.capacity)
        self.losses.begin_anew()

    def _count_place(self, agent: Resident) -> None:
        self._residents += 1
        self._own += agent.own
        self._first += agent.first
        if agent.is_guest:
            self._guests += agent.own
            self._disturbances += 1

    def _forget_place(self, agent: Resident) -> None:
        self._residents -= 1
        self._own -= agent.own
        self._first -= agent.first
        if agent.is_guest:
            self._guests -= agent.own
            self._disturbances += 1
