"""What a canary shows of the server: how long a step, a prompt token and a further sequence in the batch take."""

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean, median

from ..core.fast_dataclass import dataclass
from ..core.results import AgentResult
from ..core.run_reports import PrefixReport
from ..sim import SimConfig
from .behaviour import Runs, answered, tool_seconds
from .model import AgentProfile, Behaviour, prompts
from .simulation import SimulationSetup, simulate

_TYPICAL = SimConfig()
_WORTH_TIMING = 256
"""Prompt tokens of which the time can be told from that of a step."""
_HALVINGS = 12
_LATE = 0.005
"""Seconds by which a busy client may see the end of an answer too late."""
_UNSURE = 0.5
_PLENTY = 1 << 15
"""Blocks: a canary never fills the cache."""
_MOST_BLOCKS = 1 << 10
"""Of one context: a rehearsal of longer ones has larger blocks, or it would take long."""
_PARTIAL_BLOCK = _TYPICAL.block_size / 2


@dataclass(frozen=True, slots=True)
class ServerSpeeds:
    """Of one server. The engine's numbers are as `SimConfig` means them, of its memory apart."""

    engine: SimConfig | None
    """None where turns were not streamed, or nothing could be told apart in them."""
    overhead: float
    """Seconds that a request takes beside the engine's own time."""
    turn_seconds: float
    """From a request to its first token, or to its end where turns were not streamed; on average."""
    seconds_per_token: float
    """For each further token; 0 where turns were not streamed."""
    basis: tuple[str, ...] = ()


def speeds_of(runs: Runs, behaviour: Behaviour, report: PrefixReport) -> ServerSpeeds | None:
    """None where no agent came to an answer. Best from a canary whose first run is one agent alone and whose second
    is several at once: the first shows a step and a prompt token, the second what company costs. Blocks for some
    tenths of a second, and runs an event loop: from a coroutine, call it in a thread."""
    timed = [_Timed(result) for result in answered(runs)]
    if not timed:
        return None
    if not all(each.is_streamed for each in timed):
        turn = fmean(each.model_seconds / len(each.ttft) for each in timed)
        return ServerSpeeds(None, 0.0, turn, 0.0, ("The canary was not streamed: only whole turns were timed.",))
    first_token = fmean(second for each in timed for second in each.ttft)
    per_token = fmean(each.step for each in timed)
    engine, overhead, basis = _engine(runs, behaviour, report)
    return ServerSpeeds(engine, overhead, first_token, per_token, basis)


_Seen = tuple["_Timed", AgentProfile]


def _engine(runs: Runs, behaviour: Behaviour, report: PrefixReport) -> tuple[SimConfig | None, float, tuple[str, ...]]:
    """The engine, the overhead of a request, and what they rest on."""
    lives = iter(behaviour.lives)
    groups = [[(_Timed(result), next(lives)) for result in answered([run])] for run in runs]
    groups = sorted(filter(None, groups), key=len)
    alone = [each for group in groups if len(group) == len(groups[0]) for each in group]
    step = median(timed.step for timed, _ in alone)
    if step <= 0:
        return None, 0.0, ("The canary's answers were too short to time a step.",)
    first = round(report.prompt_tokens * behaviour.scale)
    shared = min(first, round(report.shared_tokens * behaviour.scale))
    context = fmean(prompts(life, first)[-1] for _, life in alone)
    per_token, overhead, of_prompts = _prompt_token(alone, step)

    def engine(company: float) -> SimConfig:
        return _config(step, company, context, per_token)

    crowd = groups[-1]
    stage = SimulationSetup(shared, first, len(crowd), is_fixed=True, is_warm=True)
    company, of_company = _cost_of_company(crowd, stage, engine, overhead, step=step, context=context)
    together = ("No canary ran alone: a step may be quicker than was seen.",) if len(groups[0]) > 1 else ()
    return engine(company), overhead, (of_prompts, of_company, *together)


def _cost_of_company(
    crowd: list[_Seen],
    stage: SimulationSetup,
    engine: Callable[[float], SimConfig],
    overhead: float,
    *,
    step: float,
    context: float,
) -> tuple[float, str]:
    """Seconds by which a further sequence makes a step longer, and in words what that rests on: agents that ran at once
    are rehearsed until they decode for as long as was seen, which accounts for the prompts between their steps."""
    if len(crowd) == 1:
        typical = _company(_TYPICAL, context)
        share = typical / (_TYPICAL.step_base_ms * 1e-3 + typical)
        return share * step, "No canaries ran at once: what company costs a step is taken from a typical engine."
    cast = [life for _, life in crowd]
    seen = sum(timed.decoding for timed, _ in crowd)
    company = _solve(lambda each: simulate(cast, stage, engine(each), overhead).decoding, seen, most=step)
    told = f"What company costs a step was seen with {len(crowd)} at once; for more it is extrapolated."
    tokens = sum(turn.output for life in cast for turn in life)
    unsure = _LATE * sum(map(len, cast)) / (tokens * (len(crowd) - 1))
    if unsure > _UNSURE * company:
        told = f"{told} They were too few, or said too little, to be sure of it: a larger canary tells more."
    return company, told


@dataclass(frozen=True, slots=True)
class _Timed:
    """One agent's time, as its result tells it."""

    result: AgentResult

    @property
    def is_streamed(self) -> bool:
        return all(second is not None for second in self.result.timing.ttft)

    @property
    def ttft(self) -> tuple[float, ...]:
        return tuple(second or 0.0 for second in self.result.timing.ttft)

    @property
    def model_seconds(self) -> float:
        """Without what it waited for slots and tools."""
        timing = self.result.timing
        return max(0.0, timing.total - timing.queued - tool_seconds(self.result))

    @property
    def decoding(self) -> float:
        return max(0.0, self.model_seconds - sum(self.ttft))

    @property
    def step(self) -> float:
        """Seconds for each token after a turn's first."""
        return self.decoding / max(1, self.result.usage.output - self.result.turns)

    @property
    def computed(self) -> int:
        return self.result.usage.input - self.result.usage.cached


def _prompt_token(alone: list[_Seen], step: float) -> tuple[float, float, str]:
    """Seconds for a prompt token that is not cached, seconds that a request takes beside the engine, and in words what
    the first rests on. An agent's first turn computes much, its later ones little: the difference is the prompt's."""
    typical = _TYPICAL.prefill_us_per_token / (_TYPICAL.step_base_ms * 1e3) * step
    first, later = _first_tokens(alone, step)
    if median(tokens for tokens, _ in first) < _WORTH_TIMING:
        beside = median(seconds - tokens * typical for tokens, seconds in later or first)
        return typical, max(0.0, beside), "Prompts were too short to time them: a prompt token is taken as typical."
    tokens, seconds = (median(column) for column in zip(*first, strict=True))
    told = f"Prompt tokens were timed on the canary's first turn: {tokens:,.0f} that were not cached."
    if not later:
        return max(0.0, seconds / tokens), 0.0, told
    few, briefly = (median(column) for column in zip(*later, strict=True))
    if tokens < 2 * few:
        return max(0.0, seconds / tokens), 0.0, told
    each = max(0.0, (seconds - briefly) / (tokens - few))
    return each, max(0.0, briefly - each * few), told


def _first_tokens(alone: list[_Seen], step: float) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Of first turns and of later ones: prompt tokens computed, and seconds to the first token without its step. What
    a later turn computes is what is new in it beside the last answer, which the cache has. Where nothing is said to be
    cached, all turns are like first ones."""
    first, later = [], []
    for timed, life in alone:
        if not timed.result.usage.cached:
            first.append((timed.computed / len(life), fmean(timed.ttft) - step))
            continue
        new = [max(0, turn.added - turn.output) + _PARTIAL_BLOCK for turn in life[:-1]]
        first.append((max(1.0, timed.computed - sum(new)), timed.ttft[0] - step))
        later += [(tokens, seconds - step) for tokens, seconds in zip(new, timed.ttft[1:], strict=False)]
    return first, later


def _company(config: SimConfig, context: float) -> float:
    """Seconds by which a further sequence with such a context makes a step longer."""
    return config.step_us_per_seq * 1e-6 + config.step_ns_per_kv_token * 1e-9 * context


def _config(step: float, company: float, context: float, per_token: float) -> SimConfig:
    """The typical engine, as fast as was seen. What is seen of a further sequence is divided between the sequence and
    its context as in the typical engine; for agents like the canary that is the same whatever the division."""
    share = company / _company(_TYPICAL, context)
    return replace(
        _TYPICAL,
        step_base_ms=max(0.0, step - company) * 1e3,
        step_us_per_seq=_TYPICAL.step_us_per_seq * share,
        step_ns_per_kv_token=_TYPICAL.step_ns_per_kv_token * share,
        prefill_us_per_token=per_token * 1e6,
        block_size=max(_TYPICAL.block_size, 1 << (int(context) // _MOST_BLOCKS).bit_length()),
        num_blocks=_PLENTY,
    )


def _solve(decoding: Callable[[float], float], seen: float, *, most: float) -> float:
    """For which cost of company, at most `most`, the rehearsed agents decode for as long as was seen."""
    least = 0.0
    for _ in range(_HALVINGS):
        middle = (least + most) / 2
        if decoding(middle) > seen:
            most = middle
        else:
            least = middle
    return (least + most) / 2
