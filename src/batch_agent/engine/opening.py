"""The gate of a run, from what was asked for and what its backend can do."""

from typing import Any

from ..core.interfaces import Backend, CountsTokens, EventSink
from ..core.rules import Rules
from ..core.spec import BatchSpec
from ..core.traits import Traits
from ..plan.compile import prefix_chars
from ..schedule.ledger import Ledger
from ..schedule.limit import InflightLimit
from .gate import Gate
from .residency import Residency
from .slots import Slots
from .warmth import KeepWarm

_LOW_START = 8
_CHARS_PER_TOKEN = 4.0
_SAMPLE = 20_000
"""Characters of which the server is asked how many tokens they are."""


async def open_gate(
    spec: BatchSpec, rules: Rules, server: Backend, backend: Backend, first: list[Any], events: EventSink | None
) -> Gate:
    """`server` is asked what it knows, `backend` is what requests go through; `first`: an input, or none."""
    traits = server.traits
    slots = Slots(_limit(spec, traits), events)
    if not spec.tools or rules.max_turns == 1 or traits.managed_cache:
        return Gate(slots)  # nobody comes back to a context, or the cache is the service's own affair
    chars_per_token = await _chars_per_token(server, f"{rules.prompt.system}\n{first[0] if first else ''}"[:_SAMPLE])
    residency = Residency(Ledger(traits.kv_tokens), prefix_chars(rules.prompt), chars_per_token)
    keep_warm = None
    if spec.prefix.kvflow and traits.kv_tokens is not None and not (traits.keeps_agents or spec.spend.counts_tokens):
        keep_warm = KeepWarm(backend, slots, traits.kv_tokens)
    has_slower_tier = traits.kv_tokens != traits.kv_running_tokens
    return Gate(slots, residency, keep_warm, traits.kv_running_tokens if has_slower_tier else None)


def _limit(spec: BatchSpec, traits: Traits) -> InflightLimit:
    wanted, ceiling = spec.limits.max_inflight, spec.limits.backpressure_ceiling
    if wanted is not None:
        return InflightLimit(wanted, True, ceiling)
    first = min(traits.inflight, _LOW_START) if spec.limits.calibrate_backend else traits.inflight
    return InflightLimit(first, traits.fixed_inflight, ceiling)


async def _chars_per_token(server: Backend, sample: str) -> float:
    tokens = await server.count_tokens(sample) if isinstance(server, CountsTokens) and sample.strip() else None
    return len(sample) / tokens if tokens else _CHARS_PER_TOKEN
