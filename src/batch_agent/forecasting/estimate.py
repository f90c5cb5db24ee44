"""The forecast: tokens by counting, time by simulating the run, and cost from both."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from statistics import fmean
from typing import Literal

from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.messages import Placement
from ..core.options.price import Price
from ..core.protocols.backend import Traits
from ..core.requests import Lane, Usage
from ..core.run_reports import PrefixReport, SharedResults
from ..schedule.kv_ledger import KvLedger
from ..schedule.reference_model import MAX_READERS, MIN_SHARE, Read, Reader, ReferenceModel, model_of, possible_results
from ..schedule.reference_tree import Path
from ..sim import SimConfig
from .calibration import ServerSpeeds
from .forecast import AgentProfile, Behaviour, Forecast, prompts
from .simulation import ConstantLatencyServer, SimulationResult, SimulationSetup, simulate, simulate_constant

LaneOption = Literal["standard", "flex", "batch", "auto"]
_MIN_SIMULATED_TURNS = 800
_MAX_SIMULATED_TURNS = 2_400
"""About three seconds of CPU. Further agents are assumed to finish at the same rate."""
_WAVES = 2.5
"""Number of simulated agents per concurrent one: the first and the last ones say nothing about the rate."""
_MAX_UNCERTAINTY = 0.1
_MEMORY_FACTOR = 2


def forecast(
    report: PrefixReport,
    behaviour: Behaviour,
    traits: Traits,
    *,
    speeds: ServerSpeeds | None = None,
    price: Price | None = None,
    max_inflight: int | None = None,
    agents: int | None = None,
    lane: LaneOption = "standard",
) -> Forecast:
    """Makes the forecast. Blocks for up to some seconds and runs an event loop, so call it in a thread from a
    coroutine. `agents`: the number of inputs, if the report could not count them. `lane`: lane of the run. Raises
    SpecError if the number of inputs is unknown."""
    count = report.agents if agents is None else agents
    if count is None:
        raise SpecError("The number of inputs is unknown: pass a list, or agents=...")
    work = _Workload(count, report, behaviour, traits, max_inflight)
    if behaviour.places_results:
        work = replace(work, references=model_of(work.readers(), work.shared))
    simulated, basis = _simulated(work, speeds)
    usage = _with_writes(work.usage(None if traits.managed_cache else simulated), behaviour, price)
    costs = {} if price is None else {each: price.in_lane(each).of(usage) for each in traits.lanes}
    cheapest: Lane = min(reversed(traits.lanes), key=lambda each: costs.get(each, 0.0)) if costs else "standard"
    return Forecast(
        agents=count,
        usage=usage,
        inflight=work.setup.inflight if simulated is None else simulated.inflight,
        behaviour=behaviour,
        basis=(*_basis(work), *basis, *_lane_basis(lane, behaviour)),
        shared=work.shared_share,
        residents=work.residents,
        seconds=None if simulated is None or lane in ("batch", "auto") else _seconds(simulated, count),
        cost=costs.get(cheapest if lane == "auto" else lane),
        costs=tuple(costs.items()),
        prices="" if price is None else price.source,
        shared_results=_shared_results(work),
    )


@dataclass(frozen=True, slots=True)
class _Workload:
    """The run to forecast."""

    agents: int
    report: PrefixReport
    behaviour: Behaviour
    traits: Traits
    max_inflight: int | None
    references: ReferenceModel | None = None
    """Results placed before the agents' own text; None if the run places none."""

    @property
    def first(self) -> int:
        """Tokens of a first prompt, as the server counts them."""
        return max(1, round(self.report.prompt_tokens * self.behaviour.scale))

    @property
    def shared(self) -> int:
        return min(self.first - 1, round(self.report.shared_tokens * self.behaviour.scale))

    @property
    def cached_first(self) -> int:
        """Mean cached tokens of a first prompt, without the first agent: groups share more than all agents do. With
        residency, only the part that all agents share counts, as in the ledger."""
        if self.has_residency or self.report.predicted is None or self.agents < 2:
            return self.shared
        return min(self.first - 1, round(self.report.predicted * self.first * self.agents / (self.agents - 1)))

    @property
    def shared_share(self) -> float | None:
        if self.report.predicted is not None:
            return self.report.predicted
        return self.shared / self.first * (self.agents - 1) / self.agents if self.agents else None

    @property
    def has_residency(self) -> bool:
        """Whether agents return to contexts in a cache of known size."""
        returns = any(len(profile) > 1 for profile in self.behaviour.profiles)
        return returns and self.traits.kv_tokens is not None and not self.traits.managed_cache

    @property
    def setup(self) -> SimulationSetup:
        is_fixed = self.max_inflight is not None or self.traits.fixed_inflight or self.traits.managed_cache
        inflight = self.max_inflight or self.traits.inflight
        return SimulationSetup(
            self.cached_first, self.first, inflight, is_fixed, self.traits.kv_tokens if self.has_residency else None
        )

    @property
    def residents(self) -> int | None:
        """Computed by the KV ledger that the run will use, once it has seen how agents grow."""
        if not self.has_residency:
            return None
        ledger, grown = KvLedger(self.traits.kv_tokens, float(self.shared)), round(self.behaviour.grown)
        paths: Sequence[Path] = [] if self.references is None else self.references.paths
        for agent in range(self.agents + 1):
            ledger.register(str(agent), self.first - self.shared)
            if not ledger.admit(str(agent), 0.0):
                break
            if not agent:
                ledger.on_usage("0", self.first, 0, 0, has_waiters=False)
            if paths:
                ledger.on_references(str(agent), paths[agent % len(paths)])
            if not agent:
                ledger.on_usage("0", self.first + grown, 0, 0, has_waiters=False)
                ledger.remove("0")
        return ledger.residents

    @property
    def alive(self) -> int:
        """Approximate number of concurrent agents."""
        limit = self.setup.inflight if self.setup.is_fixed else max(self.setup.inflight, SimConfig().max_num_seqs)
        return min(self.agents, self.residents or limit)

    @property
    def simulated_agents(self) -> int:
        turns = self.behaviour.turns
        count = max(_MIN_SIMULATED_TURNS / turns, _WAVES * self.alive)
        if count * turns > _MAX_SIMULATED_TURNS:
            count = min(_MAX_SIMULATED_TURNS / turns, self.alive)  # at most one wave
        return min(self.agents, max(1, int(count)))

    def profiles(self, count: int) -> list[AgentProfile]:
        """The measured profiles in rotation, with tool times drawn from all measured ones: agents with equal tool times
        would move in lockstep."""
        profiles = self.behaviour.profiles
        waits = sorted(turn.tool_seconds for profile in profiles for turn in profile[:-1])
        return [
            tuple(
                replace(turn, tool_seconds=_draw(waits, f"{agent}.{at}")) if at + 1 < len(profile) else turn
                for at, turn in enumerate(profile)
            )
            for agent, profile in ((agent, profiles[agent % len(profiles)]) for agent in range(count))
        ]

    def readers(self, placement: Placement | None = None) -> list[Reader]:
        """The results that agents read. `placement`: placement of all results, instead of the one that the run asks
        for."""
        own = self.first - self.shared
        profiles = self.behaviour.profiles
        readers = []
        for agent in range(min(self.agents, MAX_READERS)):
            profile = profiles[agent % len(profiles)]
            turns = [turn.read_turn(agent, at) for at, turn in enumerate(profile[:-1])]
            if placement is not None:
                turns = [replace(each, reads=_placed(each.reads, placement)) for each in turns]
            readers.append(Reader(own, tuple(turns)))
        return readers

    def usage(self, simulated: SimulationResult | None) -> Usage:
        """Tokens of all agents. Earlier turns are cached, or as much of them as in the simulation."""
        lengths = [prompts(profile, self.first) for profile in self.behaviour.profiles]
        later = fmean(sum(each[1:]) for each in lengths)
        cached_later = later - fmean(_new(profile) for profile in self.behaviour.profiles)
        if self.references is not None:
            cached_later += (self.references.inline - self.references.first) / len(self.references.paths)
        if simulated is not None and simulated.later_turns.input:
            cached_later = later * simulated.later_turns.cached / simulated.later_turns.input
        cached = (self.shared_share or 0.0) * self.first + max(0.0, cached_later)
        if not self.behaviour.is_assumed and not self.behaviour.counts_cached:
            cached = 0.0
        elif self.behaviour.cached is not None and self.traits.managed_cache:
            cached = self.behaviour.cached * (self.first + later) * (self.agents - 1) / max(1, self.agents)
        return Usage(
            round(self.agents * (self.first + later)),
            round(self.agents * cached),
            round(self.agents * self.behaviour.output),
        )


def _with_writes(usage: Usage, behaviour: Behaviour, price: Price | None) -> Usage:
    """The usage with the provider's cache writes: as in the canary, else everything that is not cached, if writes are
    billed separately."""
    computed = usage.input - usage.cached
    minutes = behaviour.written
    if minutes is None:
        minutes = 1.0 - behaviour.written_hour if price is not None and price.bills_writes else 0.0
    written = round(minutes * computed)
    return replace(
        usage, written=written, written_hour=min(computed - written, round(behaviour.written_hour * computed))
    )


def _placed(reads: tuple[Read, ...], placement: Placement) -> tuple[Read, ...]:
    return tuple(replace(read, placement=placement) for read in reads)


def _shared_results(work: _Workload) -> SharedResults | None:
    """Results that are placed first, or the possible savings if they are worthwhile."""
    if not work.agents or not work.behaviour.reads:
        return None
    if (placed := work.references) is not None:
        scale = work.agents / len(placed.paths)
        agents, count = round(scale * sum(map(bool, placed.paths))), round(scale * placed.placed)
        saved = round(scale * (placed.inline - placed.first))
        return SharedResults(len(placed.references), agents, count, saved, placed.saved_share)
    readers = work.readers("auto")
    model = model_of(readers, work.shared)
    if model.saved_share < MIN_SHARE:
        return None
    scale = work.agents / len(readers)
    found = possible_results(model, readers, round(scale * (model.inline - model.first)))
    return replace(found, agents=round(scale * found.agents))


def _new(profile: AgentProfile) -> int:
    """Prompt tokens that no earlier turn has computed or generated."""
    return sum(max(0, turn.added - turn.output) for turn in profile[:-1])


def _draw(waits: list[float], name: str) -> float:
    position = Random(name).random() * (len(waits) - 1)  # noqa: S311 - the same in every forecast
    low = int(position)
    return waits[low] + (position - low) * (waits[min(low + 1, len(waits) - 1)] - waits[low])


def _simulated(work: _Workload, speeds: ServerSpeeds | None) -> tuple[SimulationResult | None, list[str]]:
    if speeds is None or not work.agents:
        return None, ["The duration is unknown: run a canary to measure it."]
    count = work.simulated_agents
    profiles = work.profiles(count)
    basis = [*speeds.basis] if not work.traits.managed_cache else []
    if count < work.agents:
        fewer = " (fewer than can run at once)" if count < work.alive else ""
        basis.append(f"{count:,} agents were simulated{fewer}; the others are assumed to finish at the same rate.")
    if work.traits.managed_cache:
        basis.append(
            f"The duration is based on the canary's times, with {work.setup.inflight} requests in flight; the service "
            "may allow more, or refuse some."
        )
        return simulate_constant(
            profiles, work.setup, ConstantLatencyServer(speeds.turn_seconds, speeds.seconds_per_token)
        ), basis
    if speeds.engine is None:
        return None, [*basis, "The duration is unknown: the canary must be streamed."]
    config = _config(work, speeds.engine, profiles)
    simulated = simulate(profiles, work.setup, config, speeds.overhead)
    if work.traits.kv_running_tokens is None and work.traits.kv_tokens is None:
        basis.append("The size of the KV cache is unknown; it is assumed to be large enough.")
    elif work.traits.kv_running_tokens not in (None, work.traits.kv_tokens):
        basis.append("The slower tier of the KV cache was not simulated.")
    if simulated.inflight >= config.max_num_seqs:
        basis.append(f"The server is assumed to run at most {config.max_num_seqs} requests at once.")
    return simulated, basis


def _config(work: _Workload, engine: SimConfig, profiles: list[AgentProfile]) -> SimConfig:
    """The engine with the server's memory, limited to twice what the agents could ever use."""
    needed = work.shared + sum(prompts(profile, work.first)[-1] + profile[-1].output for profile in profiles)
    blocks = 1 + _MEMORY_FACTOR * needed // engine.block_size
    room = work.traits.kv_running_tokens or work.traits.kv_tokens
    if room is not None:
        longest = max(prompts(profile, work.first)[-1] + profile[-1].output for profile in profiles)
        blocks = min(blocks, max(room, longest + engine.block_size) // engine.block_size)
    return replace(
        engine,
        num_blocks=blocks,
        max_num_seqs=work.traits.inflight if work.traits.fixed_inflight else engine.max_num_seqs,
        prefix_caching=work.behaviour.is_assumed or work.behaviour.counts_cached,
    )


def _seconds(simulated: SimulationResult, agents: int) -> float:
    """Duration of a run of this many agents. Those beyond the simulated ones are assumed to finish at the rate at which
    agents ended while others still waited to start."""
    count = len(simulated.ends)
    more = agents - count
    if more <= 0:
        return simulated.seconds
    last_start = simulated.starts[-1]
    begin = count // 4
    steady = bisect_right(simulated.ends, last_start) - begin
    if steady < begin:
        return simulated.seconds * agents / count
    span = last_start - simulated.ends[begin]
    return simulated.seconds + more * span / steady


def _lane_basis(lane: LaneOption, behaviour: Behaviour) -> list[str]:
    match lane:
        case "standard":
            return []
        case "flex":
            return ["The duration is that of the lane standard. Requests in lane flex may wait for minutes."]
        case "batch":
            return [
                f"The duration is unknown: in lane batch, each of the {behaviour.turns:.1f} turns of an agent is part "
                "of a wave, which takes minutes to 24 hours."
            ]
        case "auto":
            return [
                "The duration is unknown: it depends on the lanes. The cost is that of the cheapest one; requests near "
                "the deadline cost as in lane standard."
            ]


def _basis(work: _Workload) -> list[str]:
    behaviour = work.behaviour
    basis = [f"Behaviour of agents: {behaviour.source}."]
    if (error := behaviour.output_error) is not None and error > _MAX_UNCERTAINTY:
        basis.append(f"The canary's answers differ in length: output tokens are uncertain by {error:.0%}.")
    if not behaviour.is_assumed and not behaviour.counts_cached:
        basis.append("The server reported no cached tokens: none are expected.")
    if behaviour.tool_seconds:
        basis.append("Tools are assumed to be as fast for many agents as for few.")
    if behaviour.places_results and not any(read.heading for read in behaviour.reads):
        basis.append("No two agents of the canary read the same result: a larger canary may find some.")
    elif any(read.heading for read in behaviour.reads):
        basis.append("Results that one agent of the canary read are taken to be read by no other.")
    if work.traits.managed_cache and behaviour.is_assumed:
        basis.append("The service's cache is assumed to keep everything that is sent again.")
    return basis
