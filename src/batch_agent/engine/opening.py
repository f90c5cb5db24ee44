"""The gate of a run, from what was asked for and what its backend can do."""

from ..core.interfaces import Backend, CountsTokens, EventSink
from ..core.spec import BatchSpec
from ..core.traits import Traits
from ..schedule.ledger import Ledger
from ..schedule.limit import InflightLimit
from .gate import Gate
from .residency import Residency
from .slots import Slots
from .warmth import KeepWarm

_LOW_START = 8
_SAMPLE = 20_000
"""Characters of which the server is asked how many tokens they are."""


def open_gate(
    spec: BatchSpec,
    backend: Backend,
    shared_chars: int,
    chars_per_token: float,
    events: EventSink | None,
    *,
    come_back: bool,
) -> Gate:
    """`shared_chars`: of the prompt, in common to all agents. `come_back`: whether agents have more than one turn."""
    traits = backend.traits
    slots = Slots(_limit(spec, traits), events)
    if not come_back or traits.managed_cache:
        return Gate(slots)  # nobody comes back to a context, or the cache is the service's own affair
    residency = Residency(Ledger(traits.kv_tokens), shared_chars, chars_per_token)
    keep_warm = None
    if spec.prefix.kvflow and traits.kv_tokens is not None and not (traits.keeps_agents or spec.spend.counts_tokens):
        keep_warm = KeepWarm(backend, slots, traits.kv_tokens)
    has_slower_tier = traits.kv_tokens != traits.kv_running_tokens
    running_tokens = traits.kv_running_tokens if has_slower_tier else None
    return Gate(slots, residency, keep_warm, running_tokens, shared_chars=shared_chars)


def _limit(spec: BatchSpec, traits: Traits) -> InflightLimit:
    wanted, ceiling = spec.limits.max_inflight, spec.limits.backpressure_ceiling
    if wanted is not None:
        return InflightLimit(wanted, True, ceiling)
    first = min(traits.inflight, _LOW_START) if spec.limits.calibrate_backend else traits.inflight
    return InflightLimit(first, traits.fixed_inflight, ceiling)


async def calibrate(server: Backend, text: str) -> float | None:
    """Characters per token of a text like those that will be sent, as its server counts; None where it does not."""
    sample = text[:_SAMPLE]
    tokens = await server.count_tokens(sample) if isinstance(server, CountsTokens) and sample.strip() else None
    return len(sample) / tokens if tokens else None
