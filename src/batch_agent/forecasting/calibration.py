"""Speed of a server, measured on a canary: time per step, per prompt token, and per further sequence in a batch."""

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean, median

from ..core.fast_dataclass import dataclass
from ..core.results import AgentResult
from ..core.run_reports import PrefixReport
from ..sim import SimConfig
from .behaviour import Runs, answered, tool_seconds
from .forecast import AgentProfile, Behaviour, prompts
from .simulation import SimulationSetup, simulate

_TYPICAL = SimConfig()
_MIN_TIMED_TOKENS = 256
"""Number of prompt tokens whose time can be distinguished from that of a step."""
_HALVINGS = 12
_CLIENT_DELAY = 0.005
"""Seconds by which a busy client may be late to notice the end of an answer."""
_MAX_UNCERTAINTY = 0.5
_AMPLE_BLOCKS = 1 << 15
"""Number of blocks that a canary never fills."""
_MAX_CONTEXT_BLOCKS = 1 << 10
"""Maximum number of blocks of a context. Longer contexts are simulated with larger blocks, to save time."""
_PARTIAL_BLOCK = _TYPICAL.block_size / 2


@dataclass(frozen=True, slots=True)
class ServerSpeeds:
    """Speeds of a server. The engine is a `SimConfig` without the size of its memory."""

    engine: SimConfig | None
    """None if turns were not streamed, or were too short to measure."""
    overhead: float
    """Seconds per request outside of the engine."""
    turn_seconds: float
    """Mean time from a request to its first token, or to its end if turns were not streamed."""
    seconds_per_token: float
    """Seconds per further token; 0 if turns were not streamed."""
    basis: tuple[str, ...] = ()


def speeds_of(runs: Runs, behaviour: Behaviour, report: PrefixReport) -> ServerSpeeds | None:
    """Measures the speeds; None if no agent has an answer. Best measured on a canary whose first group is one agent and
    whose second group is several concurrent ones: the first gives the time of a step and of a prompt token, the second
    the cost of concurrency. Blocks for some tenths of a second and runs an event loop, so call it in a thread from a
    coroutine."""
    timed = [_Timed(result) for result in answered(runs)]
    if not timed:
        return None
    if not all(each.is_streamed for each in timed):
        turn = fmean(each.model_seconds / len(each.ttft) for each in timed)
        return ServerSpeeds(None, 0.0, turn, 0.0, ("The canary was not streamed, so only whole turns were timed.",))
    first_token = fmean(second for each in timed for second in each.ttft)
    per_token = fmean(each.step for each in timed)
    engine, overhead, basis = _engine(runs, behaviour, report)
    return ServerSpeeds(engine, overhead, first_token, per_token, basis)


_TimedAgent = tuple["_Timed", AgentProfile]


def _engine(runs: Runs, behaviour: Behaviour, report: PrefixReport) -> tuple[SimConfig | None, float, tuple[str, ...]]:
    """The engine, the overhead of a request, and the basis of both."""
    profiles = iter(behaviour.profiles)
    groups = [[(_Timed(result), next(profiles)) for result in answered([run])] for run in runs]
    groups = sorted(filter(None, groups), key=len)
    alone = [each for group in groups if len(group) == len(groups[0]) for each in group]
    step = median(timed.step for timed, _ in alone)
    if step <= 0:
        return None, 0.0, ("The canary's answers were too short to time a step.",)
    first = round(report.prompt_tokens * behaviour.scale)
    shared = min(first, round(report.shared_tokens * behaviour.scale))
    context = fmean(prompts(profile, first)[-1] for _, profile in alone)
    per_token, overhead, of_prompts = _prompt_token(alone, step)

    def engine(batch_cost: float) -> SimConfig:
        return _config(step, batch_cost, context, per_token)

    concurrent = groups[-1]
    setup = SimulationSetup(shared, first, len(concurrent), is_fixed=True, is_warm=True)
    batch_cost, of_batch = _batch_cost(concurrent, setup, engine, overhead, step=step, context=context)
    together = ("No canary ran alone: a step may be faster than measured.",) if len(groups[0]) > 1 else ()
    return engine(batch_cost), overhead, (of_prompts, of_batch, *together)


def _batch_cost(
    concurrent: list[_TimedAgent],
    setup: SimulationSetup,
    engine: Callable[[float], SimConfig],
    overhead: float,
    *,
    step: float,
    context: float,
) -> tuple[float, str]:
    """Seconds that a further sequence adds to a step, and the basis of that number. Simulates the concurrent agents
    until they decode for as long as measured, which accounts for the prompts between their steps."""
    if len(concurrent) == 1:
        typical = _sequence_cost(_TYPICAL, context)
        share = typical / (_TYPICAL.step_base_ms * 1e-3 + typical)
        return share * step, "No canaries ran concurrently: the cost of concurrency is that of a typical engine."
    profiles = [profile for _, profile in concurrent]
    measured = sum(timed.decoding for timed, _ in concurrent)
    cost = _solve(lambda each: simulate(profiles, setup, engine(each), overhead).decoding, measured, upper=step)
    basis = f"The cost of concurrency was measured with {len(concurrent)} agents; for more it is extrapolated."
    tokens = sum(turn.output for profile in profiles for turn in profile)
    uncertainty = _CLIENT_DELAY * sum(map(len, profiles)) / (tokens * (len(concurrent) - 1))
    if uncertainty > _MAX_UNCERTAINTY * cost:
        basis = f"{basis} There were too few agents, or too short answers, for a precise value: use a larger canary."
    return cost, basis


@dataclass(frozen=True, slots=True)
class _Timed:
    """The times of one agent's result."""

    result: AgentResult

    @property
    def is_streamed(self) -> bool:
        return all(second is not None for second in self.result.timing.ttft)

    @property
    def ttft(self) -> tuple[float, ...]:
        return tuple(second or 0.0 for second in self.result.timing.ttft)

    @property
    def model_seconds(self) -> float:
        """Time without waits for slots and tools."""
        timing = self.result.timing
        return max(0.0, timing.total - timing.queued - tool_seconds(self.result))

    @property
    def decoding(self) -> float:
        return max(0.0, self.model_seconds - sum(self.ttft))

    @property
    def step(self) -> float:
        """Seconds for each token of a turn after the first."""
        return self.decoding / max(1, self.result.usage.output - self.result.turns)

    @property
    def computed(self) -> int:
        return self.result.usage.input - self.result.usage.cached


def _prompt_token(alone: list[_TimedAgent], step: float) -> tuple[float, float, str]:
    """Seconds per uncached prompt token, seconds per request outside of the engine, and the basis of the former. An
    agent's first turn computes many tokens and its later turns few; the difference is the time of the prompt."""
    typical = _TYPICAL.prefill_us_per_token / (_TYPICAL.step_base_ms * 1e3) * step
    first, later = _first_tokens(alone, step)
    if median(tokens for tokens, _ in first) < _MIN_TIMED_TOKENS:
        overhead = median(seconds - tokens * typical for tokens, seconds in later or first)
        return (
            typical,
            max(0.0, overhead),
            "Prompts were too short to time: the time of a prompt token is a typical one.",
        )
    tokens, seconds = (median(column) for column in zip(*first, strict=True))
    basis = f"Prompt tokens were timed on the canary's first turn: {tokens:,.0f} uncached tokens."
    if not later:
        return max(0.0, seconds / tokens), 0.0, basis
    few, briefly = (median(column) for column in zip(*later, strict=True))
    if tokens < 2 * few:
        return max(0.0, seconds / tokens), 0.0, basis
    each = max(0.0, (seconds - briefly) / (tokens - few))
    return each, max(0.0, briefly - each * few), basis


def _first_tokens(alone: list[_TimedAgent], step: float) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """For first and for later turns: computed prompt tokens, and seconds to the first token without its step. A later
    turn computes its new tokens except the last answer, which is cached. If the server reports no cached tokens, or
    results are placed before an agent's own text, all turns count as first ones."""
    first, later = [], []
    for timed, profile in alone:
        is_moved = any(read.placement != "inline" for turn in profile for read in turn.reads)
        if not timed.result.usage.cached or is_moved:
            first.append((timed.computed / len(profile), fmean(timed.ttft) - step))
            continue
        new = [max(0, turn.added - turn.output) + _PARTIAL_BLOCK for turn in profile[:-1]]
        first.append((max(1.0, timed.computed - sum(new)), timed.ttft[0] - step))
        later += [(tokens, seconds - step) for tokens, seconds in zip(new, timed.ttft[1:], strict=False)]
    return first, later


def _sequence_cost(config: SimConfig, context: float) -> float:
    """Seconds that a further sequence with this context adds to a step."""
    return config.step_us_per_seq * 1e-6 + config.step_ns_per_kv_token * 1e-9 * context


def _config(step: float, batch_cost: float, context: float, per_token: float) -> SimConfig:
    """The typical engine, scaled to the measured speed. The cost of a further sequence is divided between the sequence
    and its context as in the typical engine. For agents like the canary, the division makes no difference."""
    share = batch_cost / _sequence_cost(_TYPICAL, context)
    return replace(
        _TYPICAL,
        step_base_ms=max(0.0, step - batch_cost) * 1e3,
        step_us_per_seq=_TYPICAL.step_us_per_seq * share,
        step_ns_per_kv_token=_TYPICAL.step_ns_per_kv_token * share,
        prefill_us_per_token=per_token * 1e6,
        block_size=max(_TYPICAL.block_size, 1 << (int(context) // _MAX_CONTEXT_BLOCKS).bit_length()),
        num_blocks=_AMPLE_BLOCKS,
    )


def _solve(decoding: Callable[[float], float], measured: float, *, upper: float) -> float:
    """The cost of a further sequence, up to `upper`, for which the simulation decodes for as long as measured."""
    lower = 0.0
    for _ in range(_HALVINGS):
        middle = (lower + upper) / 2
        if decoding(middle) > measured:
            upper = middle
        else:
            lower = middle
    return (lower + upper) / 2
