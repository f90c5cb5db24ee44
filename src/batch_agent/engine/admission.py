"""Admission controller: a slot for each request in flight, and KV residency for each agent."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from types import TracebackType
from typing import TYPE_CHECKING

from ..agent.references import PlacedReference
from ..core.agent_config import FirstPrompt, Job
from ..core.events import EndpointChanged, LoadSampled
from ..core.facts import Compacted, Fact, Replied, Returned
from ..core.fast_dataclass import dataclass
from ..core.messages import ToolCall
from ..core.protocols.backend import (
    AssignsEndpoints,
    ChangesEndpoints,
    CollectsRequests,
    ServerLoad,
    Traits,
)
from ..core.requests import NO_USAGE, ContextHint, Request, Usage
from ..core.run_reports import Scheduling
from ..lazy_imports import lazy_modules
from ..schedule.slot_queue import Priority
from .slots import HeldSlot, Slots

with lazy_modules(globals()):
    from ..schedule import kv_tiers

if TYPE_CHECKING:  # most runs of one turn need none of them
    from .keep_warm import ContextHints, KeepWarm
    from .pool_residency import PoolResidency
    from .residency import Residency, ResidencyLease

_NO_LEASE = nullcontext()
_NEW_FIRST, _IN_TURN = Priority(False, -2), Priority(False, -1)
"""Priorities while new agents are started before others are continued, in the order in which they ask."""
_COMPUTATIONS_WITHOUT_ROOM = 2.0
"""Measured with a cache that holds a quarter of the contexts: all prompts were computed about twice."""


class AdmissionController:
    """Admits agents to each turn. Without residency, because agents have a single turn or the service manages its
    cache, only slots are counted."""

    def __init__(
        self,
        slots: Slots,
        residency: "Residency | PoolResidency | None" = None,
        keep_warm: "KeepWarm | None" = None,
        device_tokens: int | None = None,
        *,
        shared_chars: int = 0,
        depth: int = 0,
        agents: int | None = None,
        hints: "ContextHints | None" = None,
        has_later_turns: bool = True,
        cost: "CostEstimate | None" = None,
    ) -> None:
        """`device_tokens`: tokens of device memory for the contexts of running requests, if known; a KV cache with a
        slower tier may hold more residents. `shared_chars`: characters of the prefix that the agents of this run share.
        `depth`: index of the stage in a flow; new agents of later stages go first. `agents`: number of agents, if
        known. `hints`: sends context hints, if the server takes them. `has_later_turns`: whether an agent may have more
        than one turn. `cost`: estimates the usage of a request, for a backend that may be paced."""
        self.slots = slots
        self._cost = cost
        self.residency = residency
        self._keep_warm = keep_warm
        self._hints = hints
        self._has_later_turns = has_later_turns
        self._device_tokens = device_tokens
        self._unstarted = agents
        self._last_rounds = 0 if agents is None else kv_tiers.LAST_ROUNDS
        self._has_results = False
        self._shared_chars = shared_chars
        self._new_agent_priority = Priority(True, -depth)
        self.first_turns = NO_USAGE
        """Usage of the first turns of all new agents, including their hits in the server's prefix cache."""
        self._new: set[str] = set()
        self._load: ServerLoad | None = None
        self._live: set[str] = set()
        """Admitted agents that have not ended."""
        self.is_dispatching = False
        """Whether further agents may be admitted without waiting for others."""
        self._on_agents: Callable[[], None] | None = None

    def observe(self, backend: CollectsRequests, waiting_for_budget: Callable[[], int]) -> None:
        """Tells the backend how many agents may still send a request."""
        self._on_agents = backend.observe_agents(
            lambda: len(self._live) + self.is_dispatching - self.slots.waiting - waiting_for_budget()
        )

    def expect(self, agents: int) -> None:
        """Adds to the number of agents that the run is still going to start. `agents` may be negative."""
        if self._unstarted is not None:
            self._unstarted += agents

    def on_dispatch(self, *, is_dispatching: bool) -> None:
        """`is_dispatching`: whether the engine is reading inputs. If not, it waits for an agent to end, or has read
        them all."""
        self.is_dispatching = is_dispatching
        if self._on_agents is not None:
            self._on_agents()

    def share(
        self, shared_chars: int, depth: int, *, has_later_turns: bool = True, server: object = None
    ) -> "AdmissionController":
        """Returns a controller for the agents of another run, which has the same limits and another shared prefix.
        `server`: the backend of that run, if it differs."""
        if self.residency is not None:
            from .pool_residency import PoolResidency

            self.residency.add_shared_prefix(shared_chars)
            if isinstance(self.residency, PoolResidency) and isinstance(server, AssignsEndpoints):
                self.residency.connect(server)
        return AdmissionController(
            self.slots,
            self.residency,
            self._keep_warm,
            self._device_tokens,
            shared_chars=shared_chars,
            depth=depth,
            hints=self._hints,
            has_later_turns=has_later_turns,
            cost=self._cost,
        )

    async def admit(self, job: Job, facts: Sequence[Fact]) -> HeldSlot:
        """Waits until a new or resumed agent has residency and a slot."""
        if not facts:
            self._new.add(job.key)
        if self.residency is not None:
            own, references = _recorded_chars(facts)
            prompt = FirstPrompt(own + job.chars, self._shared_chars, references)
            await self.residency.admit(job.key, prompt, self._new_agent_priority)
            self._update_memory_cap(self.residency)
        try:
            slot = await self.slots.acquire(
                _NEW_FIRST if self._starts_new() else self._new_agent_priority, self._expected(job, facts)
            )
        except BaseException:
            self.release(job.key)
            raise
        if self._unstarted:
            self._unstarted -= 1
        self._live.add(job.key)
        return slot

    async def readmit(self, job: Job, turns_left: int) -> HeldSlot:
        """Waits until a started agent has residency and a slot for its next turn."""
        priority = Priority(False, turns_left, job.index)
        if self._on_agents is not None:
            self._on_agents()
        if self.residency is not None:
            await self.residency.readmit(job.key, priority)
        return await self.slots.acquire(_IN_TURN if self._starts_new() else priority, self._expected(job))

    def _expected(self, job: Job, facts: Sequence[Fact] = ()) -> Usage:
        if self._cost is None:
            return NO_USAGE
        chars = self._shared_chars + job.chars + (_recorded_chars(facts)[0] if facts else 0)
        return self._cost.of_next(job.key, chars, self.slots)

    def _starts_new(self) -> bool:
        """Whether new agents go before started ones."""
        unstarted = self._unstarted
        if not unstarted or unstarted > self._last_rounds * self.slots.limit:
            return False  # more than the last rounds have left: whatever fits
        fits = self.residency is None or self.residency.holds_new(unstarted)
        work = kv_tiers.RemainingWork(unstarted, self.slots.effective_limit, self._has_results, fits)
        return kv_tiers.admission_order(work) == "start_new"

    def hinted(self, request: Request, turns_left: int) -> Request:
        """The request with a hint about the agent's next one, if the server takes hints."""
        if self._hints is None or not request.agent:
            return request
        is_last = not self._has_later_turns or turns_left <= 1
        residency = self.residency
        shared = self._shared_chars / 4 if residency is None else residency.shared_tokens
        next_use = None if is_last or residency is None else residency.typical_wait
        return self._hints.attach(request, ContextHint(request.agent, next_use, is_last, int(shared)))

    def on_reply(self, agent: str, fact: Replied) -> None:
        self.slots.on_success(fact.seconds)
        if self._cost is not None:
            self._cost.contexts[agent] = fact.reply.usage
        if agent in self._new:
            self._new.remove(agent)
            self.first_turns += fact.reply.usage
        if self.residency is not None:
            in_flight = self.slots.in_use_by_all
            self.residency.on_reply(agent, fact.reply.usage, fact.seconds, fact.ttft, in_flight=in_flight)
            self._update_memory_cap(self.residency)

    def on_references(self, agent: str, references: Mapping[str, int]) -> None:
        """From the agent's next turn on, these tool results precede its own text. `references`: heading and characters
        of each, in prompt order."""
        if self.residency is not None:
            self.residency.on_references(agent, references)
            self._update_memory_cap(self.residency)

    def expected_computations(self, chars: int) -> float:
        """Expected number of times that the server computes a result of this length, if it stands behind its call:
        contexts that do not all fit into the cache are computed again."""
        has_room = self.residency is None or self.residency.fits_each(chars)
        return 1.0 if has_room else _COMPUTATIONS_WITHOUT_ROOM

    def on_compaction(self, agent: str, fact: Compacted) -> None:
        if self.residency is not None:
            self.residency.on_compaction(agent, fact.after)
            self._update_memory_cap(self.residency)

    def _update_memory_cap(self, residency: "Residency | PoolResidency") -> None:
        device = self._device_tokens
        if device is None:
            return
        capacity = residency.capacity
        if capacity is None or capacity > device:
            contexts = residency.max_concurrent(device)
            self.slots.set_memory_cap(None if contexts is None else contexts // self.slots.workers or 1)

    def tool_wait(
        self, agent: str, calls: Sequence[ToolCall], request: Request | None
    ) -> AbstractContextManager[object]:
        """Context manager for a tool wait: the agent holds no slot, and keeps its residency on a lease. `request`: that
        of the agent's last turn."""
        if self.residency is None:
            return _NO_LEASE
        lease = self.residency.lease(agent, [call.name for call in calls])
        observer = self._hints or self._keep_warm
        if observer is None or request is None:
            return lease
        return _ObservedWait(lease, observer, self.residency, agent, request)

    def follow(self, server: ChangesEndpoints, *, scales: bool) -> Callable[[], None]:
        """Adapts the limits as endpoints of the server join and leave. `scales`: whether to adapt the slots too,
        because the user has set no limit. Returns a function that stops it."""
        inflight = server.traits.inflight

        def on_change(change: EndpointChanged) -> None:
            nonlocal inflight
            before, inflight = inflight, server.traits.inflight
            self._on_endpoint(change, server.traits, inflight / max(1, before) if scales else 1.0)

        return server.observe_endpoints(on_change)

    def _on_endpoint(self, change: EndpointChanged, traits: Traits, factor: float) -> None:
        if change.state != "left" and factor != 1.0:
            self.slots.scale(factor, f"an endpoint {'joined' if change.state == 'joined' else 'is draining'}")
        self._device_tokens = None if self._device_tokens is None else traits.kv_running_tokens
        from .pool_residency import PoolResidency

        if not isinstance(self.residency, PoolResidency):
            return
        match change.state:
            case "joined":
                self.residency.join(change.endpoint, change.kv_tokens)
            case "draining":
                self.residency.drain(change.endpoint)
            case "left":
                self.residency.leave(change.endpoint)
        self._update_memory_cap(self.residency)

    def on_load(self, load: ServerLoad) -> None:
        """The server reported its load."""
        self._load = load
        self.slots.on_load(load)
        if load.kv_host_tokens is not None and self._device_tokens is not None and self.residency is not None:
            self.residency.set_capacity(kv_tiers.KvTiers(self._device_tokens, load.kv_host_tokens).retained)
        if self._keep_warm is None:
            return
        from .residency import Residency

        if isinstance(self.residency, Residency):
            ledger = self.residency.ledger
            has_room = not (self.slots.is_full or self.residency.has_waiters or ledger.others.waiting)
            self._keep_warm.on_load(load, ledger.tokens_per_second, has_room=has_room)

    def sample(self, backend: str) -> LoadSampled:
        """The current use of the limits."""
        use, load = self.residency.report() if self.residency else None, self._load
        return LoadSampled(
            backend,
            self.slots.in_use,
            self.slots.limit,
            self.slots.waiting,
            use.residents if use else None,
            int(use.held_tokens) if use else None,
            int(use.limit / self.slots.workers) if use and use.limit is not None else None,
            load.kv_usage if load else None,
            load.running if load else None,
            load.waiting if load else None,
        )

    def report(self) -> Scheduling:
        """The scheduling report so far."""
        inflight, limits, pace = self.slots.limit, tuple(self.slots.history), self.slots.pace
        pacing = None if pace is None else pace.pacing()
        if self.residency is None:
            return Scheduling(inflight, limits, pace=pacing)
        use = self.residency.report()
        return Scheduling(
            inflight,
            limits,
            kv_tokens=use.capacity,
            kv_limit=None if use.limit is None else int(use.limit),
            max_residents=use.max_residents,
            evictions=use.evictions,
            overcommitted=use.overcommitted,
            cache_misses=use.cache_misses,
            keep_warm=None if self._keep_warm is None else self._keep_warm.stats,
            pace=pacing,
        )

    async def aclose(self) -> None:
        if self._keep_warm is not None:
            await self._keep_warm.aclose()
        if self._hints is not None:
            await self._hints.aclose()

    def release(self, agent: str) -> None:
        self._new.discard(agent)
        self._live.discard(agent)
        if self._on_agents is not None:
            self._on_agents()
        self._has_results = True
        if self._cost is not None:
            self._cost.contexts.pop(agent, None)
        if self._hints is not None:
            self._hints.forget(agent)
        if self.residency is not None:
            self.residency.release(agent)


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """Estimates the usage of requests before they are sent."""

    max_tokens: int | None
    chars_per_token: float
    contexts: dict[str, Usage] = field(default_factory=dict)
    """Usage of the last request of each agent."""

    def of_next(self, agent: str, chars: int, slots: Slots) -> Usage:
        """Estimated usage of an agent's next request. `chars`: characters of its prompt, if it is the first one."""
        output = 0 if slots.pace is None else slots.pace.expected_output(self.max_tokens)
        last = self.contexts.get(agent)
        if last is None:
            return Usage(int(chars / self.chars_per_token), 0, output)
        return Usage(last.input + last.output, last.cached, output)


class _ObservedWait:
    """A residency lease during which the agent's context is kept in the server's cache."""

    __slots__ = ("_agent", "_lease", "_observer", "_request", "_residency")

    def __init__(
        self,
        lease: "ResidencyLease",
        observer: "KeepWarm | ContextHints",
        residency: "Residency | PoolResidency",
        agent: str,
        request: Request,
    ) -> None:
        self._lease = lease
        self._observer = observer
        self._residency = residency
        self._agent = agent
        self._request = request

    def __enter__(self) -> None:
        back_at = self._lease.__enter__()
        self._observer.on_wait(self._agent, self._request, self._residency.tokens(self._agent), back_at)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._observer.on_return(self._agent)
        self._lease.__exit__(kind, error, trace)


def _recorded_chars(facts: Sequence[Fact]) -> tuple[int, Mapping[str, int]]:
    """Characters of a conversation that an earlier process began, and of its references."""
    if not facts:
        return 0, {}
    replies = 0
    inline: list[int] = []
    placed: dict[int, PlacedReference] = {}
    for fact in facts:
        match fact:
            case Replied(reply):
                replies += len(reply.text)
            case Returned(results):
                for result in results:
                    if result.reference is not None and result.is_placed_first:
                        placed[len(inline)] = PlacedReference(result.reference, result.content)
                    inline.append(0 if result.is_placed_first else len(result.content))
            case Compacted(shortened):
                for each in shortened:
                    inline[each.index] = len(each.content)
                    placed.pop(each.index, None)
            case _:
                pass
    references = {each.reference.heading: each.chars for each in sorted(placed.values(), key=lambda each: each.order)}
    return replies + sum(inline), references
