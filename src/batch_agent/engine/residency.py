"""Residency: permission to keep an agent's context in the server's KV cache, from its first turn to its end."""

import asyncio
import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from types import TracebackType

from ..core.agent_config import FirstPrompt
from ..core.requests import Usage
from ..schedule.estimators import ToolWaits
from ..schedule.kv_account import KvDemand, KvGrant, KvUse
from ..schedule.kv_ledger import KvLedger
from ..schedule.kv_tiers import AgentCycle, gains_from_overcommit
from ..schedule.reference_tree import SizedReference
from ..schedule.slot_queue import Priority

_LEARNING_RATE = 0.2
_MIN_IDLE = 0.05
_MAX_IDLE = 1.0
_LOOKAHEAD = 32
_MAX_PASSED_OVER = 8
Waiter = tuple[Priority, int, str, "asyncio.Future[None]"]
"""Priority, ticket, agent, and the future that is set when it is admitted."""


@dataclass(frozen=True, slots=True)
class ResidencyReport:
    """Use of the KV cache and counts so far, summed over the endpoints of a pool."""

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
    queue: list[Waiter] = field(default_factory=list)


class Residency:
    """Admits agents as the ledger allows, started ones before new ones. Waiters are woken; nothing polls."""

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
        """Called when agents wait for more than this worker's grant, or when it has released some; None without other
        workers."""
        ledger.shared_tokens = shared_chars / chars_per_token
        self._shared_chars = shared_chars
        self.chars_per_token = chars_per_token
        self._chars: dict[str, int] = {}
        self._tool_waits = tool_waits or ToolWaits()
        self._unassigned = unassigned or UnassignedAgents(lambda _: False, lambda *_: None)
        self._turn_seconds: float | None = None
        self._wait_seconds: float | None = None
        """Average tool wait of an agent."""
        self._in_flight: float | None = None
        """Mean number of requests in flight at all workers."""
        self._queue: list[Waiter] = []
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
        """Counts the shared prefix, of `chars` characters, of another run whose agents are admitted too."""
        self._shared_chars += chars
        self.ledger.shared_tokens = self._shared_chars / self.chars_per_token

    async def admit(self, agent: str, prompt: FirstPrompt, priority: Priority) -> None:
        """Waits until a new agent has residency."""
        self.register(agent, prompt)
        try:
            await self._acquire(agent, priority)
        except BaseException:
            self.release(agent)
            raise

    def register(self, agent: str, prompt: FirstPrompt) -> None:
        """Registers a new agent without residency."""
        references, shared = prompt.references, prompt.shared_chars
        placed = sum(references.values()) if references else 0
        self._chars[agent] = prompt.chars + placed + (self._shared_chars if shared is None else shared)
        self.ledger.register(agent, prompt.chars / self.chars_per_token)
        if references:
            self.on_references(agent, references)

    def forget(self, agent: str) -> None:
        """Forgets an agent without residency here, which was admitted elsewhere or has ended."""
        self._chars.pop(agent, None)
        self.ledger.remove(agent)

    def move(self, agent: str, target: "Residency") -> None:
        """Moves the agent to another endpoint, where it becomes resident at once if it fits and no agent waits,
        otherwise before its next turn. Admits waiters to the room that it leaves."""
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
        """Lets the started agents that wait here wait for another endpoint. Returns them."""
        waiters, self._queue = [waiter for waiter in self._queue if not waiter[3].done()], []
        for waiter in waiters:
            self.ledger.move(waiter[2], target.ledger)
            heapq.heappush(target._queue, waiter)
        target.admit_waiting()
        target.ask()
        return [waiter[2] for waiter in waiters]

    def on_references(self, agent: str, references: Mapping[str, int]) -> None:
        """Sets the references of the agent's next prompt: heading and characters of each, in prompt order."""
        path = [SizedReference(heading, chars / self.chars_per_token) for heading, chars in references.items()]
        self.ledger.on_references(agent, tuple(path))

    def fits_each(self, chars: int) -> bool:
        """Whether the residents would fit with `chars` more characters of their own."""
        return not self.has_waiters and self.ledger.fits_each(chars / self.chars_per_token)

    async def readmit(self, agent: str, priority: Priority) -> None:
        """Waits until a started agent has residency for its next turn."""
        await self._acquire(agent, priority)

    def on_reply(self, agent: str, usage: Usage, seconds: float, ttft: float | None, *, in_flight: int = 1) -> None:
        """Records an answer to the agent's request. `in_flight`: requests in flight at all workers, including this
        one."""
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
        """Begins a tool wait. Returns when the tools are expected to return, if known."""
        expected = self._tool_waits.estimate(tools)
        self._busy.discard(agent)
        self.ledger.pause(agent, now, expected)
        self.admit_waiting()
        return None if expected is None else now + expected

    def end_tool_wait(self, tools: list[str], seconds: float) -> None:
        """Ends a tool wait that took `seconds`."""
        self._tool_waits.observe_wait(tools, seconds)
        self._wait_seconds = _learn(self._wait_seconds, seconds)

    def release(self, agent: str) -> None:
        self._chars.pop(agent, None)
        self._busy.discard(agent)
        self.ledger.remove(agent)
        self.admit_waiting()
        self.ask()

    def _learn_chars_per_token(self, chars_per_token: float) -> None:
        self.chars_per_token += _LEARNING_RATE * (chars_per_token - self.chars_per_token)
        self.ledger.shared_tokens = self._shared_chars / self.chars_per_token

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
        """Gives a registered agent residency if it fits. Call it only while no agent waits for the room."""
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

    def _grant(self, waiter: Waiter) -> None:
        is_started = _remove(self._queue, waiter)
        waiter[3].set_result(None)
        self._busy.add(waiter[2])
        if not is_started:
            _remove(self._unassigned.queue, waiter)
            self._unassigned.on_admitted(waiter[2], self)

    def _next_sharing(self, now: float) -> Waiter | None:
        """A waiter that may pass the first one, because residents have all of its references and only its own text
        takes up room. Only a few may pass before the first is admitted."""
        if not self.ledger.references.tokens or self._passed_over >= _MAX_PASSED_OVER:
            return None
        for waiter in self._first_waiters()[1:]:
            agent = waiter[2]
            if not waiter[3].cancelled() and self.ledger.shares_references(agent) and self.ledger.admit(agent, now):
                return waiter
        return None

    @property
    def _new_waiters(self) -> list[Waiter]:
        """New agents that wait for any endpoint of the pool, if this one takes them."""
        queue = self._unassigned.queue
        return queue if queue and self._unassigned.may_join(self) else []

    def _first_waiters(self) -> list[Waiter]:
        return heapq.nsmallest(_LOOKAHEAD, chain(self._queue, self._new_waiters))

    def _next_waiter(self) -> Waiter | None:
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
        """Whether one more agent gains more time than it costs by evicting contexts, which are computed again. False
        while it is unknown how long turns and tools take."""
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


def _remove(queue: list[Waiter], waiter: Waiter) -> bool:
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
