"""Setup of an admission controller, from the options of a run and the traits of its backend."""

from typing import TYPE_CHECKING

from ..core.protocols.backend import (
    AssignsEndpoints,
    Backend,
    CollectsRequests,
    CountsTokens,
    PaceKind,
    TakesHints,
    Traits,
)
from ..core.protocols.event_sink import EventSink
from ..core.spec import BatchSpec
from ..lazy_imports import lazy_modules
from ..schedule.concurrency_limit import InflightLimit
from .admission import AdmissionController, CostEstimate
from .slots import Slots

with lazy_modules(globals()):  # most runs of one turn need none of them
    from ..schedule import kv_ledger, pace
    from . import keep_warm, pool_residency, residency

if TYPE_CHECKING:
    from ..schedule.pace import Pace
    from .pool_residency import PoolResidency
    from .residency import Residency

_CALIBRATION_START = 8
_SAMPLE_CHARS = 20_000
"""Length of the sample text whose tokens the server counts."""


def build_admission(
    spec: BatchSpec,
    backend: Backend,
    shared_chars: int,
    chars_per_token: float,
    events: EventSink | None,
    *,
    has_later_turns: bool,
    agents: int | None = None,
    server: object = None,
) -> AdmissionController:
    """Builds the admission controller of a run. `shared_chars`: characters of the prefix that all agents share.
    `has_later_turns`: whether an agent may have more than one turn. `agents`: number of agents, if it is known and all
    of them run in this process. `server`: receives hints that are sent without a request, if it takes them."""
    traits = backend.traits
    run_pace = _pace(spec, traits, server)
    slots = Slots(_inflight_limit(spec, traits), events, run_pace, awaits_limits=traits.reports_rate_limits)
    cost = None if run_pace is None else CostEstimate(spec.sampling.max_tokens, chars_per_token)
    if not has_later_turns or traits.managed_cache or isinstance(server, CollectsRequests):
        # No agent reuses its context, or the service manages its cache itself.
        is_ordered = has_later_turns and traits.managed_cache
        return AdmissionController(
            slots,
            shared_chars=shared_chars,
            agents=agents if is_ordered else None,
            hints=keep_warm.ContextHints() if traits.takes_hints else None,
            has_later_turns=has_later_turns,
            cost=cost,
        )
    warmer = None
    if (
        spec.prefix.kvflow
        and traits.kv_tokens is not None
        and not (traits.has_agent_sessions or traits.takes_hints or spec.spending.counts_tokens)
    ):
        warmer = keep_warm.KeepWarm(backend, slots, traits.kv_tokens)
    hints = None
    if traits.takes_hints:
        # Requests that only keep a context in the cache are not part of a budget of tokens.
        may_send = not spec.spending.counts_tokens
        has_slower_tier = traits.kv_tokens != traits.kv_running_tokens
        has_prefetch = spec.prefix.kvflow and has_slower_tier and may_send
        prefetch = keep_warm.KeepWarm(backend, slots, 0) if has_prefetch else None
        hints = keep_warm.ContextHints(server if isinstance(server, TakesHints) and may_send else None, prefetch)
    return AdmissionController(
        slots,
        _residency(traits, server, shared_chars, chars_per_token),
        warmer,
        traits.kv_running_tokens,
        shared_chars=shared_chars,
        agents=agents,
        hints=hints,
        cost=cost,
    )


def _residency(
    traits: Traits, server: object, shared_chars: int, chars_per_token: float
) -> "Residency | PoolResidency":
    """One ledger for each endpoint whose capacity is known, else one for the whole backend."""
    if isinstance(server, AssignsEndpoints) and (capacities := server.kv_capacities) is not None:
        return pool_residency.PoolResidency(server, capacities, shared_chars, chars_per_token)
    return residency.Residency(kv_ledger.KvLedger(traits.kv_tokens), shared_chars, chars_per_token)


def _inflight_limit(spec: BatchSpec, traits: Traits) -> InflightLimit:
    limit, ceiling = spec.limits.max_inflight, spec.limits.backpressure_ceiling
    if limit is not None:
        return InflightLimit(limit, True, ceiling)
    first = min(traits.inflight, _CALIBRATION_START) if spec.limits.calibrate_backend else traits.inflight
    return InflightLimit(first, traits.fixed_inflight, ceiling)


def _pace(spec: BatchSpec, traits: Traits, server: object) -> "Pace | None":
    """None: nothing limits the requests per minute, and no response may do so."""
    limits: dict[PaceKind, int] = {}
    if spec.limits.rpm is not None:
        limits["requests"] = spec.limits.rpm
    if spec.limits.tpm is not None:
        limits["tokens"] = spec.limits.tpm
    if not limits and not traits.reports_rate_limits:
        return None
    return pace.Pace(limits, endpoints=server.paces if isinstance(server, pace.PacesEndpoints) else None)


async def measure_chars_per_token(server: Backend, text: str) -> float | None:
    """Characters per token of a sample text, as counted by the server; None if it does not count tokens."""
    sample = text[:_SAMPLE_CHARS]
    tokens = await server.count_tokens(sample) if isinstance(server, CountsTokens) and sample.strip() else None
    return len(sample) / tokens if tokens else None
