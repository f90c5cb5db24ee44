"""Residency: permission to keep an agent's context in the server's KV cache, from its first turn to its end."""

import asyncio
import heapq
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from types import TracebackType

from ..core.protocols import AssignsEndpoints
from ..core.requests import Usage
from ..schedule.estimators import ToolWaits
from ..schedule.kv_account import KvDemand, KvGrant, KvUse
from ..schedule.kv_ledger import KvLedger
from ..schedule.kv_tiers import AgentCycle, gains_from_overcommit
from ..schedule.reference_tree import SizedReference
from ..schedule.routing import MAX_OVERLOAD, MAX_WAIT_RATIO
from ..schedule.slot_queue import Priority

_LEARNING_RATE = 0.2
_MIN_IDLE = 0.05
_MAX_IDLE = 1.0
_LOOKAHEAD = 32
_MAX_PASSED_OVER = 8
_MAX_CONSIDERED = 64
"""Endpoints of a pool that are compared for an agent: all of them, or the next ones in turn."""

_Waiter = tuple[Priority, int, str, "asyncio.Future[None]"]
"""Priority, ticket, agent, and what is set when it is admitted."""


@dataclass(frozen=True, slots=True)
class ResidencyReport:
    """Use of the KV cache, and counts so far; sums over the endpoints of a pool."""

    capacity: int | None
    limit: float | None
    residents: int
    held_tokens: float
    max_residents: int
    evictions: int
    overcommitted: int
    cache_misses: int
    max_reference_tokens: float


@dataclass(slots=True)
class UnassignedAgents:
    """New agents that wait for the first endpoint of a pool that has room."""

    may_join: Callable[["Residency"], bool]
    """Whether the endpoint takes new agents."""
    on_admitted: Callable[[str, "Residency"], None]
    queue: list[_Waiter] = field(default_factory=list)


class Residency:
    """Admits agents as the ledger allows, started agents before new ones. Waiters are woken; nothing polls."""

    def __init__(
        self,
        ledger: KvLedger,
        shared_chars: int,
        chars_per_token: float = 4.0,
        *,
        tool_waits: ToolWaits | None = None,
        unassigned: UnassignedAgents | None = None,
    ) -> None:
        """`shared_chars`: characters of the prefix that all agents share; see `add_shared_prefix` for further ones.
        `tool_waits`, `unassigned`: shared by the endpoints of a pool."""
        self.ledger = ledger
        self.ask_for_room: Callable[[], None] | None = None
        """Called when agents wait for more than this worker's grant, or for what it released; None without other
        workers."""
        ledger.shared_tokens = shared_chars / chars_per_token
        self._shared_chars = shared_chars
        self._chars_per_token = chars_per_token
        self._chars: dict[str, int] = {}
        self._tool_waits = tool_waits or ToolWaits()
        self._unassigned = unassigned or UnassignedAgents(lambda _: False, lambda *_: None)
        self._turn_seconds: float | None = None
        self._wait_seconds: float | None = None
        """Of agents for their tools, on average."""
        self._in_flight: float | None = None
        """Mean number of requests in flight, at all workers."""
        self._queue: list[_Waiter] = []
        self._passed_over = 0
        """Waiters that were admitted before the first of the queue."""
        self._tickets = itertools.count()
        self.now = asyncio.get_running_loop().time
        self._busy: set[str] = set()
        """Agents that wait for a slot or have a request in flight."""
        self._timer: asyncio.TimerHandle | None = None
        self._idle_since: float | None = None

    @property
    def has_waiters(self) -> bool:
        if self._queue:
            return True
        return bool(self._unassigned.queue) and self._unassigned.may_join(self)

    @property
    def endpoints(self) -> Sequence["Residency"]:
        """The residency of each endpoint."""
        return (self,)

    @property
    def capacity(self) -> int | None:
        return self.ledger.capacity

    @property
    def shared_tokens(self) -> float:
        return self.ledger.shared_tokens

    @property
    def busy(self) -> int:
        """Agents that wait for a slot or have a request in flight."""
        return len(self._busy)

    @property
    def typical_wait(self) -> float | None:
        """Seconds within which most tool waits end; None while too little is known."""
        return self._tool_waits.typical

    def use(self) -> KvUse:
        """Use of this worker."""
        waiting = sum(not waiter[3].done() for waiter in chain(self._queue, self._new_waiters))
        return replace(self.ledger.use, busy=len(self._busy), waiting=waiting)

    def demand(self, now: float) -> KvDemand:
        """Demand for a grant, by the current figures of the other workers."""
        first = self._next_waiter()
        waiters = [] if first is None else self._first_waiters()
        names = [waiter[2] for waiter in waiters if not waiter[3].done()]
        return self.ledger.demand(names, may_overcommit=first is not None and self._may_overcommit(now))

    def set_grant(self, grant: KvGrant) -> None:
        """Admits waiters within a new grant."""
        self.ledger.grant = grant
        self.admit_waiting()

    def set_capacity(self, tokens: int) -> None:
        """The server keeps this many tokens, as it turned out."""
        if self.ledger.capacity is not None and tokens != self.ledger.capacity:
            self.ledger.resize(tokens)
            self.admit_waiting()

    def add_shared_prefix(self, chars: int) -> None:
        """Agents of another run are admitted too; they share a prefix of `chars` characters."""
        self._shared_chars += chars
        self.ledger.shared_tokens = self._shared_chars / self._chars_per_token

    async def admit(
        self,
        agent: str,
        chars: int,
        priority: Priority,
        shared_chars: int | None = None,
        references: Mapping[str, int] | None = None,
    ) -> None:
        """Waits until a new agent has residency. `chars`: of its first prompt, after the `shared_chars` of the prefix
        (None: the prefix of all agents) and the `references`, as for `on_references`."""
        self.register(agent, chars, shared_chars, references)
        try:
            await self._acquire(agent, priority)
        except BaseException:
            self.release(agent)
            raise

    def register(
        self, agent: str, chars: int, shared_chars: int | None = None, references: Mapping[str, int] | None = None
    ) -> None:
        """Registers a new agent without residency. Arguments as for `admit`."""
        placed = sum(references.values()) if references else 0
        self._chars[agent] = chars + placed + (self._shared_chars if shared_chars is None else shared_chars)
        self.ledger.register(agent, chars / self._chars_per_token)
        if references:
            self.on_references(agent, references)

    def forget(self, agent: str) -> None:
        """The agent, which has no residency here, was admitted elsewhere or has ended."""
        self._chars.pop(agent, None)
        self.ledger.remove(agent)

    def move(self, agent: str, target: "Residency") -> None:
        """The agent continues on another endpoint. It becomes resident there at once if it fits and nobody waits, and
        otherwise before its next turn. Waiters for its room are admitted."""
        is_busy = agent in self._busy
        self._chars.pop(agent, None)
        self._busy.discard(agent)
        self.ledger.move(agent, target.ledger)
        if is_busy:
            target._busy.add(agent)
            if not target.has_waiters:
                target.ledger.admit(agent, self.now())
        self.admit_waiting()
        self.ask()

    def move_waiters(self, target: "Residency") -> list[str]:
        """The started agents that wait here wait for another endpoint instead. Returns them."""
        waiters, self._queue = [waiter for waiter in self._queue if not waiter[3].done()], []
        for waiter in waiters:
            self.ledger.move(waiter[2], target.ledger)
            heapq.heappush(target._queue, waiter)
        target.admit_waiting()
        target.ask()
        return [waiter[2] for waiter in waiters]

    def on_references(self, agent: str, references: Mapping[str, int]) -> None:
        """The agent's next prompt has these references: their headings, in the order of the prompt, with the
        characters of each."""
        path = [SizedReference(heading, chars / self._chars_per_token) for heading, chars in references.items()]
        self.ledger.on_references(agent, tuple(path))

    def fits_each(self, chars: int) -> bool:
        """Whether the residents would fit with `chars` more characters of their own."""
        return not self.has_waiters and self.ledger.fits_each(chars / self._chars_per_token)

    async def readmit(self, agent: str, priority: Priority) -> None:
        """Waits until a started agent has residency for its next turn."""
        await self._acquire(agent, priority)

    def on_reply(self, agent: str, usage: Usage, seconds: float, ttft: float | None, *, in_flight: int = 1) -> None:
        """The agent's request was answered. `in_flight`: requests in flight at all workers, this one included."""
        chars = self._chars.pop(agent, None)
        if chars is not None and usage.input:
            self._learn_chars_per_token(chars / usage.input)
        self._turn_seconds = _learn(self._turn_seconds, seconds)
        self._in_flight = _learn(self._in_flight, in_flight)
        self.ledger.prefill_speed.observe(usage, seconds, ttft, self.now())
        self.ledger.on_usage(agent, usage.input, usage.cached, usage.output, has_waiters=self.has_waiters)

    def lease(self, agent: str, tools: list[str]) -> "ResidencyLease":
        """The lease of an agent that waits for these tools."""
        return ResidencyLease(self, agent, tools)

    def begin_tool_wait(self, agent: str, tools: list[str], now: float) -> float | None:
        """The agent begins to wait for tools. When they are expected to return, if known."""
        expected = self._tool_waits.estimate(tools)
        self._busy.discard(agent)
        self.ledger.pause(agent, now, expected)
        self.admit_waiting()
        return None if expected is None else now + expected

    def end_tool_wait(self, tools: list[str], seconds: float) -> None:
        """The tools returned after `seconds`."""
        self._tool_waits.observe_wait(tools, seconds)
        self._wait_seconds = _learn(self._wait_seconds, seconds)

    def release(self, agent: str) -> None:
        self._chars.pop(agent, None)
        self._busy.discard(agent)
        self.ledger.remove(agent)
        self.admit_waiting()
        self.ask()

    def _learn_chars_per_token(self, chars_per_token: float) -> None:
        self._chars_per_token += _LEARNING_RATE * (chars_per_token - self._chars_per_token)
        self.ledger.shared_tokens = self._shared_chars / self._chars_per_token

    async def _acquire(self, agent: str, priority: Priority) -> None:
        if self.ledger.is_resident(agent) or (not self.has_waiters and self.ledger.admit(agent, self.now())):
            self._busy.add(agent)
            return
        granted = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (priority, next(self._tickets), agent, granted))
        self.admit_waiting()
        self.ask()
        try:
            await granted
        except asyncio.CancelledError:
            self.admit_waiting()
            raise

    def take(self, agent: str) -> bool:
        """Gives a registered agent residency if it fits. Nobody may wait for the room."""
        if not self.ledger.admit(agent, self.now()):
            return False
        self._busy.add(agent)
        return True

    def report(self) -> ResidencyReport:
        ledger, counts = self.ledger, self.ledger.counts
        return ResidencyReport(
            ledger.capacity,
            ledger.limit,
            ledger.residents,
            ledger.held_tokens,
            counts.max_residents,
            counts.evictions,
            counts.overcommitted,
            ledger.cache_misses.total,
            ledger.references.max_shared_tokens,
        )

    def holds_new(self, agents: int) -> bool:
        """As for the ledger."""
        return self.ledger.holds_new(agents)

    def max_concurrent(self, tokens: int) -> int | None:
        """As for the ledger."""
        return self.ledger.max_concurrent(tokens)

    def on_compaction(self, agent: str, prompt: int) -> None:
        """As for the ledger."""
        self.ledger.on_compaction(agent, prompt)

    def tokens(self, agent: str) -> int:
        """As for the ledger."""
        return self.ledger.tokens(agent)

    def admit_waiting(self) -> None:
        """Admits waiters that fit, and sets a timer for when another may fit without an event."""
        if not self.has_waiters and self._timer is None:
            return
        now = self.now()
        while (first := self._next_waiter()) is not None:
            overcommit = self._may_overcommit(now)
            if (grant := self.ledger.grant) is not None:  # only a transaction knows whether all workers are idle
                if overcommit and not grant.overcommit and self.ledger.may_ask_to_overcommit:
                    self.ask()
                overcommit = grant.overcommit
            if self.ledger.admit(first[2], now, overcommit=overcommit):
                if grant is not None and grant.overcommit:
                    self.ledger.grant = replace(grant, overcommit=False)
                self._passed_over = 0
                self._grant(first)
            elif (other := self._next_sharing(now)) is not None:
                self._passed_over += 1
                self._grant(other)
            else:
                break
        self._set_timer(now)

    def ask(self) -> None:
        """Asks for a grant for the waiters, or reports to waiters of other workers what was released."""
        if self.ask_for_room is not None and (self.has_waiters or self.ledger.others.waiting):
            self.ask_for_room()

    def _grant(self, waiter: _Waiter) -> None:
        is_started = _remove(self._queue, waiter)
        waiter[3].set_result(None)
        self._busy.add(waiter[2])
        if not is_started:
            _remove(self._unassigned.queue, waiter)
            self._unassigned.on_admitted(waiter[2], self)

    def _next_sharing(self, now: float) -> _Waiter | None:
        """A waiter behind the first that is admitted before it, because residents have all of its references and only
        its own text takes up room. It happens a few times at most before the first is admitted."""
        if not self.ledger.references.tokens or self._passed_over >= _MAX_PASSED_OVER:
            return None
        for waiter in self._first_waiters()[1:]:
            agent = waiter[2]
            if not waiter[3].cancelled() and self.ledger.shares_references(agent) and self.ledger.admit(agent, now):
                return waiter
        return None

    @property
    def _new_waiters(self) -> list[_Waiter]:
        """New agents that wait for any endpoint of the pool, if this one takes them."""
        queue = self._unassigned.queue
        return queue if queue and self._unassigned.may_join(self) else []

    def _first_waiters(self) -> list[_Waiter]:
        return heapq.nsmallest(_LOOKAHEAD, chain(self._queue, self._new_waiters))

    def _next_waiter(self) -> _Waiter | None:
        """The next waiter. Cancelled waiters stay in a queue until they come to its head."""
        queues = self._queue, self._new_waiters
        for queue in queues:
            while queue and queue[0][3].cancelled():
                heapq.heappop(queue)
        return min((queue[0] for queue in queues if queue), default=None)

    def _may_overcommit(self, now: float) -> bool:
        """Whether the engine has so little to do that an agent may be admitted beyond the capacity."""
        if self._busy or self.ledger.others.busy:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        if self._idle_since is not None and now >= self._idle_since + self._idle_limit():
            return True
        return self._can_overcommit()

    def _can_overcommit(self) -> bool:
        """Whether one more agent gains more than it costs: contexts that it evicts are computed again. Not while it is
        unknown how long turns and tools take."""
        ledger = self.ledger
        turn, wait, in_flight, speed = self._turn_seconds, self._wait_seconds, self._in_flight, ledger.tokens_per_second
        if not turn or wait is None or in_flight is None or speed is None or ledger.limit is None:
            return False
        context = ledger.reserved_tokens / max(1, ledger.all_residents)
        if context <= 0 or not ledger.all_residents:
            return False
        cycle = AgentCycle(turn, wait, context / speed, in_flight)
        return gains_from_overcommit(ledger.all_residents, ledger.limit / context, cycle)

    def _idle_limit(self) -> float:
        """Seconds that the engine may idle before an agent is admitted beyond the capacity: about the time to recompute
        the context that this evicts."""
        ledger = self.ledger
        speed = ledger.tokens_per_second
        if speed is None or not ledger.all_residents:
            return _MIN_IDLE
        return min(_MAX_IDLE, max(_MIN_IDLE, ledger.reserved_tokens / ledger.all_residents / speed))

    def _set_timer(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.has_waiters:
            self._idle_since = None
            return
        ends = self.ledger.next_lease_end()
        if self._idle_since is not None:
            ends = min(ends or float("inf"), self._idle_since + self._idle_limit())
        if ends is not None and ends > now:  # what was due by now waits for the next grant
            self._timer = asyncio.get_running_loop().call_at(ends, self.admit_waiting)


class PoolResidency:
    """Residency in a pool of endpoints, each with its own ledger. A new agent is admitted by an endpoint that has room
    for it, waits for the first of them if none has, and stays where it is resident. It moves if its requests fail
    there, the endpoint is ejected or drains, or its expected wait is several times that of an endpoint with room. Then
    it gives up its residency, and asks for it on the other endpoint."""

    def __init__(
        self, pool: AssignsEndpoints, capacities: Mapping[str, int], shared_chars: int, chars_per_token: float = 4.0
    ) -> None:
        """`capacities`: tokens of the KV cache of each endpoint, by its name."""
        self._unassigned = UnassignedAgents(self._may_join, self._on_admitted)
        self._tool_waits = ToolWaits()
        self._shared_chars = shared_chars
        self._chars_per_token = chars_per_token
        self.on_endpoint: Callable[[str, Residency, bool], None] | None = None
        """Called with an endpoint that joins (True), or that has left (False)."""
        self._by_name: dict[str, Residency] = {}
        """The endpoints in service."""
        self._names: dict[Residency, str] = {}
        """Also of those that have left, while agents that wait for tools belong to them."""
        self._first = 0
        self._last: str | None = None
        """The last endpoint, if it has left too: it is kept until another one joins."""
        for name, capacity in capacities.items():
            self._add(name, capacity)
        self._homes: dict[str, Residency] = {}
        self._new: dict[str, tuple[int, int | None, Mapping[str, int] | None]] = {}
        """New agents that wait, with the arguments of `Residency.register`."""
        self._pools: list[AssignsEndpoints] = []
        self._tickets = itertools.count()
        self._max_residents = 0
        self.connect(pool)

    def connect(self, pool: AssignsEndpoints) -> None:
        """Another backend sends requests to the same endpoints."""
        if pool not in self._pools:
            self._pools.append(pool)
            pool.on_routed = self.on_routed

    @property
    def endpoints(self) -> Sequence[Residency]:
        """The residency of each endpoint in service."""
        return list(self._by_name.values())

    @property
    def named_endpoints(self) -> Mapping[str, Residency]:
        return self._by_name

    def join(self, name: str, capacity: int | None) -> None:
        """An endpoint takes requests from now on. Agents that wait may be admitted there. `capacity`: None if it is
        unknown, which is taken for the smallest of the others."""
        if name in self._by_name:  # it was draining
            joined = self._by_name[name]
        else:
            joined = self._add(name, capacity or min(each.capacity or 1 for each in self.endpoints))
            for agent, waiting in self._new.items():
                joined.register(agent, *waiting)
            if self.on_endpoint is not None:
                self.on_endpoint(name, joined, True)
        last, self._last = self._last, None
        if last is not None and last != name:
            self.leave(last)
        joined.admit_waiting()
        joined.ask()

    def drain(self, name: str) -> None:
        """Started agents that wait for this endpoint wait for another one instead. Those that have a request in flight
        there, or wait for tools, move before their next turn."""
        drained = self._by_name.get(name)
        others = [each for each in self._by_name.values() if each is not drained and self._is_available(each)]
        if drained is None or not others:
            return
        target = max(others, key=lambda each: (each.ledger.limit or 0.0) - each.ledger.held_tokens)
        self._move_waiters(drained, target)

    def leave(self, name: str) -> None:
        """The endpoint is gone, with its KV cache. Agents that wait for tools still belong to it until their next
        turn."""
        if name in self._by_name and len(self._by_name) == 1:
            self._last = name
        elif (gone := self._by_name.pop(name, None)) is not None:
            for agent in self._new:
                gone.forget(agent)
            if gone not in self._homes.values():
                del self._names[gone]
            if self.on_endpoint is not None:
                self.on_endpoint(name, gone, False)

    def _add(self, name: str, capacity: int) -> Residency:
        per_token = next(iter(self._by_name.values()))._chars_per_token if self._by_name else self._chars_per_token
        added = Residency(
            KvLedger(capacity),
            self._shared_chars,
            per_token,
            tool_waits=self._tool_waits,
            unassigned=self._unassigned,
        )
        self._by_name[name], self._names[added] = added, name
        return added

    @property
    def has_waiters(self) -> bool:
        return bool(self._unassigned.queue) or any(each.has_waiters for each in self.endpoints)

    @property
    def capacity(self) -> int | None:
        return sum(each.capacity or 0 for each in self.endpoints)

    @property
    def shared_tokens(self) -> float:
        return max(each.shared_tokens for each in self.endpoints)

    @property
    def typical_wait(self) -> float | None:
        return self.endpoints[0].typical_wait

    def home(self, agent: str) -> Residency:
        """The endpoint on which the agent is, or was, resident. Raises KeyError for one that was not admitted."""
        return self._homes[agent]

    def set_capacity(self, tokens: int) -> None:
        """The endpoints together keep this many tokens, as it turned out."""
        before = self.capacity
        for each in self.endpoints:
            if before and each.capacity:
                each.set_capacity(round(tokens * each.capacity / before))

    def add_shared_prefix(self, chars: int) -> None:
        self._shared_chars += chars
        for each in self.endpoints:
            each.add_shared_prefix(chars)

    async def admit(
        self,
        agent: str,
        chars: int,
        priority: Priority,
        shared_chars: int | None = None,
        references: Mapping[str, int] | None = None,
    ) -> None:
        """Waits until a new agent has residency on one of the endpoints. Arguments as for `Residency.admit`."""
        if self._admit_at_once(agent, chars, shared_chars, references):
            return
        self._new[agent] = chars, shared_chars, references
        for each in self._by_name.values():
            each.register(agent, chars, shared_chars, references)
        granted = asyncio.get_running_loop().create_future()
        heapq.heappush(self._unassigned.queue, (priority, next(self._tickets), agent, granted))
        try:
            self._admit_new(agent)
            await granted
        except BaseException:
            self.release(agent)
            raise

    async def readmit(self, agent: str, priority: Priority) -> None:
        """Waits until a started agent has residency for its next turn."""
        if (target := self._better_endpoint(agent)) is not None:
            self._move(agent, target)
            self._assign(agent, target)
        await self.home(agent).readmit(agent, priority)
        self._count_residents()

    def on_routed(self, agent: str, endpoint: str) -> None:
        """A request of the agent is sent to this endpoint: another one than before if that failed, was ejected or
        drains."""
        home, target = self._homes.get(agent), self._by_name.get(endpoint)
        if home is None or target is None or home is target:
            return
        if not self._is_available(home):
            self._move_waiters(home, target)
        self._move(agent, target)

    def _move_waiters(self, home: Residency, target: Residency) -> None:
        for waiter in home.move_waiters(target):
            self._homes[waiter] = target
            self._assign(waiter, target)

    def on_references(self, agent: str, references: Mapping[str, int]) -> None:
        self.home(agent).on_references(agent, references)

    def on_reply(self, agent: str, usage: Usage, seconds: float, ttft: float | None, *, in_flight: int = 1) -> None:
        """As `Residency.on_reply`; `in_flight`: at all endpoints."""
        home, busy = self.home(agent), sum(each.busy for each in self.endpoints)
        share = max(1, round(in_flight * home.busy / max(1, busy)))
        home.on_reply(agent, usage, seconds, ttft, in_flight=share)

    def on_compaction(self, agent: str, prompt: int) -> None:
        self.home(agent).on_compaction(agent, prompt)

    def tokens(self, agent: str) -> int:
        return self.home(agent).tokens(agent)

    def fits_each(self, chars: int) -> bool:
        return not self.has_waiters and all(each.fits_each(chars) for each in self.endpoints)

    def holds_new(self, agents: int) -> bool:
        """Whether this many new agents would fit, if each endpoint takes as many as its limit suggests."""
        limits = [each.ledger.limit or 0.0 for each in self.endpoints]
        shares = [math.ceil(agents * limit / (sum(limits) or 1.0)) for limit in limits]
        return all(each.holds_new(share) for each, share in zip(self.endpoints, shares, strict=True))

    def max_concurrent(self, tokens: int) -> int | None:
        """How many contexts fit into `tokens` of all endpoints, of which each has a part like that of its capacity."""
        capacity = self.capacity or 1
        counts = [each.max_concurrent(tokens * (each.capacity or 0) // capacity) for each in self.endpoints]
        return sum(count for count in counts if count is not None) or None

    def lease(self, agent: str, tools: list[str]) -> "ResidencyLease":
        return self.home(agent).lease(agent, tools)

    def report(self) -> ResidencyReport:
        reports = [each.report() for each in self.endpoints]
        return ResidencyReport(
            self.capacity,
            sum(each.limit or 0.0 for each in reports),
            sum(each.residents for each in reports),
            sum(each.held_tokens for each in reports),
            self._max_residents,
            sum(each.evictions for each in reports),
            sum(each.overcommitted for each in reports),
            sum(each.cache_misses for each in reports),
            sum(each.max_reference_tokens for each in reports),
        )

    def release(self, agent: str) -> None:
        home = self._homes.pop(agent, None)
        if home is not None:
            home.release(agent)
        elif self._new.pop(agent, None) is not None:
            for each in self._by_name.values():
                each.forget(agent)
        if self._unassigned.queue:  # an endpoint may be back up
            for each in self.endpoints:
                each.admit_waiting()

    def _admit_at_once(
        self, agent: str, chars: int, shared_chars: int | None, references: Mapping[str, int] | None
    ) -> bool:
        """Of many endpoints, some are asked first, while no other agent waits."""
        if len(self._by_name) <= _MAX_CONSIDERED or self._unassigned.queue:
            return False
        considered = [each for each in self._considered() if self._is_available(each) and not each.has_waiters]
        for each in considered:
            each.register(agent, chars, shared_chars, references)
        for each in sorted(considered, key=lambda each: self._preference(agent, each)):
            if each.take(agent):
                for other in considered:
                    if other is not each:
                        other.forget(agent)
                self._settle(agent, each)
                return True
        for each in considered:
            each.forget(agent)
        return False

    def _considered(self) -> list[Residency]:
        """All endpoints; of many, the next ones in turn."""
        endpoints = list(self._by_name.values())
        if len(endpoints) <= _MAX_CONSIDERED:
            return endpoints
        self._first = (self._first + _MAX_CONSIDERED) % len(endpoints)
        return (endpoints + endpoints)[self._first : self._first + _MAX_CONSIDERED]

    def _admit_new(self, agent: str) -> None:
        """The endpoints are asked in order of preference whether they admit the agent."""
        for each in sorted(self.endpoints, key=lambda each: self._preference(agent, each)):
            if agent not in self._homes:
                each.admit_waiting()
        if agent not in self._homes:
            for each in self.endpoints:
                each.ask()

    def _preference(self, agent: str, endpoint: Residency) -> tuple[bool, float]:
        """Endpoints with room for a new agent come first, the one that serves its residents soonest at their head;
        then the others, the one with most room at their head."""
        room = endpoint.ledger.room_left(agent)
        if room < 0:
            return True, -room
        return False, self._expected_wait(endpoint, endpoint.ledger.residents + 1)

    def _on_admitted(self, agent: str, home: Residency) -> None:
        self._new.pop(agent, None)
        for each in self._by_name.values():
            if each is not home:
                each.forget(agent)
        self._settle(agent, home)

    def _settle(self, agent: str, home: Residency) -> None:
        self._homes[agent] = home
        self._assign(agent, home)
        self._count_residents()

    def _assign(self, agent: str, home: Residency) -> None:
        for pool in self._pools:
            pool.assign(agent, self._names[home])

    def _move(self, agent: str, target: Residency) -> None:
        home, self._homes[agent] = self._homes[agent], target
        home.move(agent, target)

    def _better_endpoint(self, agent: str) -> Residency | None:
        """Where a started agent continues instead: if its endpoint was ejected, where most room is. Else on an endpoint
        with room that has more of its references while its own text is computed again anyway, or whose expected wait is
        several times shorter."""
        home = self.home(agent)
        others = [each for each in self._considered() if each is not home and self._is_available(each)]
        rooms = {each: each.ledger.room_left(agent, home.ledger) for each in others}
        if not self._is_available(home):
            return max(others, key=rooms.__getitem__, default=None)
        waits = {each: self._expected_wait(each, 1) for each in others if rooms[each] >= 0 and not each.has_waiters}
        if home.ledger.is_cold(agent) and (near := self._nearest(agent, home, waits)) is not home:
            return near
        best = min(waits, key=waits.__getitem__, default=None)
        return None if best is None or self._expected_wait(home, 1) <= MAX_WAIT_RATIO * waits[best] else best

    def _nearest(self, agent: str, home: Residency, waits: Mapping[Residency, float]) -> Residency:
        """The endpoint that has most of the agent's references, among those that are not overloaded; if several, its
        own."""
        cap = (1.0 + MAX_OVERLOAD) * (self._expected_wait(home, 1) + sum(waits.values())) / (1 + len(waits))
        candidates = [home, *(each for each, wait in waits.items() if wait <= cap)]
        return min(candidates, key=lambda each: each.ledger.missing_references(agent, home.ledger))

    def _expected_wait(self, endpoint: Residency, requests: int) -> float:
        return self._pools[0].expected_wait(self._names[endpoint], requests)

    def _is_available(self, endpoint: Residency) -> bool:
        name = self._names[endpoint]
        if self._by_name.get(name) is not endpoint:  # it has left, and one of the same name may have joined since
            return False
        return all(pool.is_available(name) for pool in self._pools)

    def _may_join(self, endpoint: Residency) -> bool:
        """Whether new agents may be admitted there: while no endpoint is available, anywhere, as they find out."""
        return self._is_available(endpoint) or not any(map(self._is_available, self.endpoints))

    def _count_residents(self) -> None:
        self._max_residents = max(self._max_residents, sum(each.ledger.all_residents for each in self.endpoints))


class ResidencyLease:
    """An agent's residency while it waits for its tools: `with residency.lease(agent, tools) as back_at: ...`, where
    `back_at` is when the tools are expected to return, if known."""

    __slots__ = ("_agent", "_began", "_residency", "_tools")

    def __init__(self, residency: Residency, agent: str, tools: list[str]) -> None:
        self._residency = residency
        self._agent = agent
        self._tools = tools
        self._began = 0.0

    def __enter__(self) -> float | None:
        self._began = self._residency.now()
        return self._residency.begin_tool_wait(self._agent, self._tools, self._began)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._residency.end_tool_wait(self._tools, self._residency.now() - self._began)
        finally:
            self._residency.ledger.resume(self._agent)


def _remove(queue: list[_Waiter], waiter: _Waiter) -> bool:
    """Removes a waiter, usually the first, from a heap. False if it is not there."""
    if queue and queue[0] is waiter:
        heapq.heappop(queue)
        return True
    if waiter not in queue:
        return False
    queue.remove(waiter)
    heapq.heapify(queue)
    return True


def _learn(mean: float | None, value: float) -> float:
    """The moving average with a further value."""
    return value if mean is None else mean + _LEARNING_RATE * (value - mean)
