"""Residency in a pool of endpoints: an agent is admitted to an endpoint with room for it, and stays there."""

import asyncio
import heapq
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from ..core.agent_config import FirstPrompt
from ..core.protocols.backend import AssignsEndpoints
from ..core.requests import Usage
from ..schedule.endpoints.affinity import MAX_OVERLOAD
from ..schedule.endpoints.routing import MAX_WAIT_RATIO
from ..schedule.estimators import ToolWaits
from ..schedule.kv_ledger import KvLedger
from ..schedule.slot_queue import Priority
from .residency import Residency, ResidencyLease, ResidencyReport, UnassignedAgents

_MAX_CONSIDERED = 64
"""Endpoints that are compared for an agent: all of them, or the next ones in turn."""


class PoolResidency:
    """Residency in a pool of endpoints, each with its own ledger. A new agent is admitted by an endpoint with room for
    it, or waits for the first one that has, and stays there. It moves if its requests fail there, if the endpoint is
    ejected or drains, or if its expected wait is several times that of an endpoint with room. To move, it gives up its
    residency and asks for it on the other endpoint."""

    def __init__(
        self, pool: AssignsEndpoints, capacities: Mapping[str, int], shared_chars: int, chars_per_token: float = 4.0
    ) -> None:
        """`capacities`: KV cache tokens of each endpoint, by its name."""
        self._unassigned = UnassignedAgents(self._may_join, self._on_admitted)
        self._tool_waits = ToolWaits()
        self._shared_chars = shared_chars
        self._chars_per_token = chars_per_token
        self.on_endpoint: Callable[[str, Residency, bool], None] | None = None
        """Called with an endpoint and whether it joins (True) or has left (False)."""
        self._by_name: dict[str, Residency] = {}
        """The endpoints in service."""
        self._names: dict[Residency, str] = {}
        """Names of the endpoints, including those that have left while agents that wait for tools still belong to
        them."""
        self._first = 0
        self._last: str | None = None
        """The last endpoint after it has left, kept until another one joins."""
        for name, capacity in capacities.items():
            self._add(name, capacity)
        self._homes: dict[str, Residency] = {}
        self._new: dict[str, FirstPrompt] = {}
        """Waiting new agents, with the arguments of `Residency.register`."""
        self._pools: list[AssignsEndpoints] = []
        self._tickets = itertools.count()
        self._max_residents = 0
        self.connect(pool)

    def connect(self, pool: AssignsEndpoints) -> None:
        """Observes another backend that sends requests to the same endpoints."""
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
        """Adds an endpoint that takes requests from now on; waiting agents may be admitted there. `capacity`: None if
        unknown; the smallest of the other capacities is then assumed."""
        if name in self._by_name:  # it was draining
            joined = self._by_name[name]
        else:
            joined = self._add(name, capacity or min(each.capacity or 1 for each in self.endpoints))
            for agent, prompt in self._new.items():
                joined.register(agent, prompt)
            if self.on_endpoint is not None:
                self.on_endpoint(name, joined, True)
        last, self._last = self._last, None
        if last is not None and last != name:
            self.leave(last)
        joined.admit_waiting()
        joined.ask()

    def drain(self, name: str) -> None:
        """Moves the started agents that wait for this endpoint to another one. Those with a request in flight there, or
        that wait for tools, move before their next turn."""
        drained = self._by_name.get(name)
        others = [each for each in self._by_name.values() if each is not drained and self._is_available(each)]
        if drained is None or not others:
            return
        target = max(others, key=lambda each: (each.ledger.limit or 0.0) - each.ledger.held_tokens)
        self._move_waiters(drained, target)

    def leave(self, name: str) -> None:
        """Removes an endpoint, whose KV cache is gone. Agents that wait for tools belong to it until their next
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
        per_token = next(iter(self._by_name.values())).chars_per_token if self._by_name else self._chars_per_token
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
        """The endpoint on which the agent is, or was, resident. Raises KeyError for an agent that was never
        admitted."""
        return self._homes[agent]

    def set_capacity(self, tokens: int) -> None:
        """Sets how many tokens the endpoints keep together, once it is measured."""
        before = self.capacity
        for each in self.endpoints:
            if before and each.capacity:
                each.set_capacity(round(tokens * each.capacity / before))

    def add_shared_prefix(self, chars: int) -> None:
        self._shared_chars += chars
        for each in self.endpoints:
            each.add_shared_prefix(chars)

    async def admit(self, agent: str, prompt: FirstPrompt, priority: Priority) -> None:
        """Waits until a new agent has residency on one of the endpoints."""
        if self._admit_at_once(agent, prompt):
            return
        self._new[agent] = prompt
        for each in self._by_name.values():
            each.register(agent, prompt)
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
        """Notes that a request of the agent is sent to this endpoint, which differs from the last one if that failed,
        was ejected or drains."""
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
        """How many contexts fit into `tokens` of all endpoints, which have parts in proportion to their capacities."""
        capacity = self.capacity or 1
        counts = [each.max_concurrent(tokens * (each.capacity or 0) // capacity) for each in self.endpoints]
        return sum(count for count in counts if count is not None) or None

    def lease(self, agent: str, tools: list[str]) -> ResidencyLease:
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

    def _admit_at_once(self, agent: str, prompt: FirstPrompt) -> bool:
        """Admits an agent at once if no other one waits. Of many endpoints, only some are asked."""
        if len(self._by_name) <= _MAX_CONSIDERED or self._unassigned.queue:
            return False
        considered = [each for each in self._considered() if self._is_available(each) and not each.has_waiters]
        for each in considered:
            each.register(agent, prompt)
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
        """Asks the endpoints, in order of preference, to admit the agent."""
        for each in sorted(self.endpoints, key=lambda each: self._preference(agent, each)):
            if agent not in self._homes:
                each.admit_waiting()
        if agent not in self._homes:
            for each in self.endpoints:
                each.ask()

    def _preference(self, agent: str, endpoint: Residency) -> tuple[bool, float]:
        """Sort key: endpoints with room for a new agent come first, by the expected wait of their residents; then the
        others, by the room that they have."""
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
        """A better endpoint for a started agent, or None. If its endpoint was ejected, that is the one with most room.
        Otherwise it is an endpoint with room that has more of its references (while its own text has to be computed
        again anyway), or whose expected wait is several times shorter."""
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
        """The endpoint that has most of the agent's references, among those that are not overloaded; its own in a
        tie."""
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
        """Whether new agents may be admitted there: at an available endpoint, or at any while none is available."""
        return self._is_available(endpoint) or not any(map(self._is_available, self.endpoints))

    def _count_residents(self) -> None:
        self._max_residents = max(self._max_residents, sum(each.ledger.all_residents for each in self.endpoints))
