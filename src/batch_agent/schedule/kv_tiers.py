"""KV tiers: how much a server's device and host memory keep, and the order in which agents are admitted because of
it."""

from dataclasses import dataclass
from typing import Literal

HEADROOM = 0.9
"""Usable share of a tier. What finished agents leave in the cache is more recent than the contexts of agents that wait
for their tools, and an engine that evicts the least recently used evicts the latter first."""
LAST_ROUNDS = 2
"""At the end of a run: agents per slot that are started before others are continued."""
ROUNDS_BEFORE_RESULTS = 0.5
"""Like LAST_ROUNDS, while no agent has ended."""

AdmissionOrder = Literal["continue_started", "start_new"]


@dataclass(frozen=True, slots=True)
class KvTiers:
    """Tokens that the tiers of a KV cache hold.

    The host tier of vLLM and SGLang is inclusive: what the device computes is copied to it at once, and it evicts the
    least recently used. So the tiers together keep what the larger one keeps, and not the sum. That of batch-agent-vllm
    may be exclusive: it has the contexts of agents that wait, the device those of agents that generate."""

    device: int
    host: int = 0
    is_exclusive: bool = False

    @property
    def retained(self) -> int:
        """Tokens that a returning agent may find in either tier."""
        return self.device + self.host if self.is_exclusive else max(self.device, self.host)


@dataclass(frozen=True, slots=True)
class RemainingWork:
    """The rest of a run."""

    unstarted: int | None
    """Agents that have not started; None if unknown."""
    slots: int
    """Requests that can be in flight."""
    has_results: bool
    """Whether an agent has ended."""
    fits: bool
    """Whether the cache retains the contexts of all agents that are left."""


def admission_order(work: RemainingWork) -> AdmissionOrder:
    """Which agents get the next slots.

    Agents that were started are continued first: results come early, and fewer contexts have to be kept. A run ends
    with the agent that started last, whose tools and turns follow one after the other while the engine has little else
    to do. So once the rest of a run fits into the cache, and is short, its agents are all started first. The first
    result is not delayed by it, or by half a turn: before it, only half as many as there are slots are."""
    if work.unstarted is None or not work.fits:
        return "continue_started"
    rounds = LAST_ROUNDS if work.has_results else ROUNDS_BEFORE_RESULTS
    return "start_new" if work.unstarted <= rounds * work.slots else "continue_started"


_MISSES_PER_EXCESS = 2.0
"""Rate of cache misses per share of the residents that exceed the capacity: an engine that evicts the least recently
used loses about two contexts for each that does not fit. Measured at 1.1 to 1.8 times the capacity."""
_WORTHWHILE = 1.05
"""Factor below which a gain is not worth the risk."""


@dataclass(frozen=True, slots=True)
class AgentCycle:
    """Seconds of an agent from one turn to the next, on average."""

    turn: float
    wait: float
    """For its tools."""
    recompute: float
    """To compute its context again."""
    in_flight: float
    """Requests that are in flight at a time."""


def turns_per_second(residents: float, fitting: float, cycle: AgentCycle) -> float:
    """Estimated throughput with so many residents, of which `fitting` fit into the cache: limited by the agents, each
    of which waits for its tools, and by the engine, which computes lost contexts again. What the engine can do beyond
    the turns in flight is unknown; that it could do no more is the cautious assumption."""
    misses = min(1.0, _MISSES_PER_EXCESS * max(0.0, residents - fitting) / residents)
    lost = misses * cycle.recompute
    by_agents = residents / (cycle.turn + cycle.wait + lost)
    by_engine = 1.0 / (cycle.turn / max(1.0, cycle.in_flight) + lost)
    return min(by_agents, by_engine)


def gains_from_overcommit(residents: int, fitting: float, cycle: AgentCycle) -> bool:
    """Whether one more resident than these makes the run faster, and faster than residents that all fit. Once the
    engine is the limit, further residents only wait for it, and results come later."""
    fitting = max(1.0, fitting)
    alone = turns_per_second(min(residents, fitting), fitting, cycle)
    more = turns_per_second(residents + 1, fitting, cycle)
    return more > _WORTHWHILE * alone and more > turns_per_second(residents, fitting, cycle)
