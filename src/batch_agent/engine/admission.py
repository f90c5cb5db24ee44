"""Both limits in one place: a slot for each request in flight, and a place in the KV cache for each agent.

The gate of a run, from what was asked for and what its backend can do.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

from ..core.agent_config import Job
from ..core.events import LoadSampled
from ..core.facts import Compacted, Fact, Replied, Returned
from ..core.messages import ToolCall
from ..core.protocols import Backend, CountsTokens, EventSink, ServerLoad, Traits
from ..core.requests import NO_USAGE, Request
from ..core.run_reports import Scheduling
from ..core.spec import BatchSpec
from ..schedule.concurrency_limit import InflightLimit
from ..schedule.kv_ledger import KvLedger
from ..schedule.slot_queue import Priority
from .keep_warm import KeepWarm
from .residency import Residency, ResidencyLease
from .slots import HeldSlot, Slots

_NOTHING = nullcontext()


class AdmissionController:
    """Agents go through it before each turn. Without residency, where nothing is known of a cache or no agent comes
    back to it, only slots are counted."""

    def __init__(
        self,
        slots: Slots,
        residency: Residency | None = None,
        keep_warm: KeepWarm | None = None,
        running_tokens: int | None = None,
        *,
        shared_chars: int = 0,
        depth: int = 0,
    ) -> None:
        """`running_tokens`: what the contexts of running requests may hold, where more than that can be resident.
        `shared_chars`: of the prompt that all agents which come this way have in common. `depth`: of new agents, those
        that come deeper in a flow go first."""
        self.slots = slots
        self.residency = residency
        self._keep_warm = keep_warm
        self._running_tokens = running_tokens
        self._shared_chars = shared_chars
        self._fresh = Priority(True, -depth)
        self.first_turns = NO_USAGE
        """Of all agents that began here: what their first turns took, and found in the server's prefix cache."""
        self._new: set[str] = set()
        self._load: ServerLoad | None = None

    def beside(self, shared_chars: int, depth: int) -> "AdmissionController":
        """The way to the same server for the agents of another run, which share another prompt."""
        if self.residency is not None:
            self.residency.share(shared_chars)
        return AdmissionController(
            self.slots,
            self.residency,
            self._keep_warm,
            self._running_tokens,
            shared_chars=shared_chars,
            depth=depth,
        )

    async def first_turn(self, job: Job, facts: Sequence[Fact]) -> HeldSlot:
        if not facts:
            self._new.add(job.key)
        if self.residency is not None:
            own = len(job.task) + _told(facts)
            await self.residency.enter(job.key, own, self._fresh, self._shared_chars)
            self._fit_running(self.residency)
        try:
            return await self.slots.acquire(self._fresh)
        except BaseException:
            self.leave(job.key)
            raise

    async def next_turn(self, job: Job, turns_left: int) -> HeldSlot:
        rank = Priority(False, turns_left, job.index)
        if self.residency is not None:
            await self.residency.back(job.key, rank)
        return await self.slots.acquire(rank)

    def answered(self, agent: str, fact: Replied) -> None:
        self.slots.succeeded(fact.seconds)
        if agent in self._new:
            self._new.remove(agent)
            self.first_turns += fact.reply.usage
        if self.residency is not None:
            self.residency.heard(agent, fact.reply.usage, fact.seconds, fact.ttft)
            self._fit_running(self.residency)

    def compacted(self, agent: str, fact: Compacted) -> None:
        if self.residency is not None:
            self.residency.ledger.shrank(agent, fact.after)
            self._fit_running(self.residency)

    def _fit_running(self, residency: Residency) -> None:
        if self._running_tokens is not None:
            self.slots.bound(residency.ledger.fitting(self._running_tokens // self.slots.workers))

    def shared(self, workers: int, elsewhere: int) -> None:
        """So many workers use the server, the others with so many requests in flight."""
        self.slots.shared(workers, elsewhere)
        if self.residency is not None:
            self.residency.shared(workers)

    def while_waiting(
        self, agent: str, calls: Sequence[ToolCall], asked: Request | None
    ) -> AbstractContextManager[object]:
        """While its tools run, an agent holds no slot, and its place only on lease. `asked`: its last turn."""
        if self.residency is None:
            return _NOTHING
        lease = self.residency.on_lease(agent, [call.name for call in calls])
        if self._keep_warm is None or asked is None:
            return lease
        return _KeepWarmContext(lease, self._keep_warm, self.residency, agent, asked)

    def looked(self, load: ServerLoad) -> None:
        """The server said how busy it is."""
        self._load = load
        self.slots.looked(load)
        if self._keep_warm is not None and self.residency is not None:
            has_room = not (self.slots.is_full or self.residency.is_crowded)
            self._keep_warm.looked(load, self.residency.ledger.speed.tokens_per_second, has_room=has_room)

    def sample(self, backend: str) -> LoadSampled:
        """How full it is."""
        ledger, load = self.residency.ledger if self.residency else None, self._load
        return LoadSampled(
            backend,
            self.slots.in_use,
            self.slots.limit,
            self.slots.waiting,
            ledger.residents if ledger else None,
            int(ledger.held) if ledger else None,
            int(ledger.limit) if ledger and ledger.limit is not None else None,
            load.kv_usage if load else None,
            load.running if load else None,
            load.waiting if load else None,
        )

    def report(self) -> Scheduling:
        """How it went so far."""
        inflight, limits = self.slots.limit, tuple(self.slots.history)
        if self.residency is None:
            return Scheduling(inflight, limits)
        ledger = self.residency.ledger
        counts = ledger.counts
        return Scheduling(
            inflight,
            limits,
            kv_tokens=self.residency.capacity,
            kv_limit=None if ledger.limit is None else int(ledger.limit),
            max_residents=counts.most_residents,
            evictions=counts.gave_up,
            overcommitted=counts.guests,
            cache_misses=ledger.losses.total,
            keep_warm=None if self._keep_warm is None else self._keep_warm.warmth,
        )

    async def aclose(self) -> None:
        if self._keep_warm is not None:
            await self._keep_warm.aclose()

    def leave(self, agent: str) -> None:
        self._new.discard(agent)
        if self.residency is not None:
            self.residency.leave(agent)


class _KeepWarmContext:
    """A lease during which the agent's context may be touched."""

    __slots__ = ("_agent", "_asked", "_keep_warm", "_lease", "_residency")

    def __init__(
        self, lease: ResidencyLease, keep_warm: KeepWarm, residency: Residency, agent: str, asked: Request
    ) -> None:
        self._lease = lease
        self._keep_warm = keep_warm
        self._residency = residency
        self._agent = agent
        self._asked = asked

    def __enter__(self) -> None:
        back_at = self._lease.__enter__()
        self._keep_warm.waits(self._agent, self._asked, self._residency.ledger.tokens(self._agent), back_at)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keep_warm.returned(self._agent)
        self._lease.__exit__(kind, error, trace)


def _told(facts: Sequence[Fact]) -> int:
    """Characters of a conversation that an earlier process began."""
    said = 0
    results: list[int] = []
    for fact in facts:
        match fact:
            case Replied(reply):
                said += len(reply.text)
            case Returned(returned):
                results += [len(result.content) for result in returned]
            case Compacted(shortened):
                for each in shortened:
                    results[each.place] = len(each.content)
            case _:
                pass
    return said + sum(results)


_LOW_START = 8
_SAMPLE = 20_000
"""Characters of which the server is asked how many tokens they are."""


def build_admission(
    spec: BatchSpec,
    backend: Backend,
    shared_chars: int,
    chars_per_token: float,
    events: EventSink | None,
    *,
    come_back: bool,
) -> AdmissionController:
    """`shared_chars`: of the prompt, in common to all agents. `come_back`: whether agents have more than one turn."""
    traits = backend.traits
    slots = Slots(_limit(spec, traits), events)
    if not come_back or traits.managed_cache:
        return AdmissionController(slots)  # nobody comes back to a context, or the cache is the service's own affair
    residency = Residency(KvLedger(traits.kv_tokens), shared_chars, chars_per_token)
    keep_warm = None
    if (
        spec.prefix.kvflow
        and traits.kv_tokens is not None
        and not (traits.has_agent_sessions or spec.spend.counts_tokens)
    ):
        keep_warm = KeepWarm(backend, slots, traits.kv_tokens)
    has_slower_tier = traits.kv_tokens != traits.kv_running_tokens
    running_tokens = traits.kv_running_tokens if has_slower_tier else None
    return AdmissionController(slots, residency, keep_warm, running_tokens, shared_chars=shared_chars)


def _limit(spec: BatchSpec, traits: Traits) -> InflightLimit:
    wanted, ceiling = spec.limits.max_inflight, spec.limits.backpressure_ceiling
    if wanted is not None:
        return InflightLimit(wanted, True, ceiling)
    first = min(traits.inflight, _LOW_START) if spec.limits.calibrate_backend else traits.inflight
    return InflightLimit(first, traits.fixed_inflight, ceiling)


async def measure_chars_per_token(server: Backend, text: str) -> float | None:
    """Characters per token of a text like those that will be sent, as its server counts; None where it does not."""
    sample = text[:_SAMPLE]
    tokens = await server.count_tokens(sample) if isinstance(server, CountsTokens) and sample.strip() else None
    return len(sample) / tokens if tokens else None
