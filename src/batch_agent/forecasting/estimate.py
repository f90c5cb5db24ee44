"""The forecast: tokens by counting, time by rehearsing the run, cost from both."""

from bisect import bisect_right
from dataclasses import replace
from random import Random
from statistics import fmean

from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.protocols import Traits
from ..core.requests import Usage
from ..core.run_reports import PrefixReport
from ..schedule.budget import Price
from ..schedule.kv_ledger import KvLedger
from ..sim import SimConfig
from .calibration import ServerSpeeds
from .model import AgentProfile, Behaviour, Forecast, prompts
from .simulation import ConstantLatencyServer, SimulationResult, SimulationSetup, simulate, simulate_constant

_ENOUGH_TURNS = 800
_MOST_TURNS = 2_400
"""Rehearsed: some three seconds of CPU. More agents than that makes come at the rate of these."""
_WAVES = 2.5
"""Agents to rehearse for each that can be alive at once: of the rate, the first and the last tell nothing."""
_UNSURE = 0.1
_ROOMY = 2


def forecast(
    report: PrefixReport,
    behaviour: Behaviour,
    traits: Traits,
    *,
    speeds: ServerSpeeds | None = None,
    price: Price | None = None,
    max_inflight: int | None = None,
    agents: int | None = None,
) -> Forecast:
    """Blocks for up to some seconds, and runs an event loop: from a coroutine, call it in a thread. `agents` is for
    inputs that the report could not count; raises SpecError where nobody knows their number."""
    count = report.agents if agents is None else agents
    if count is None:
        raise SpecError("A plan needs to know how many inputs there are: give a list, or agents=...")
    work = _Workload(count, report, behaviour, traits, max_inflight)
    rehearsal, basis = _rehearsed(work, speeds)
    usage = work.usage(None if traits.managed_cache else rehearsal)
    return Forecast(
        agents=count,
        usage=usage,
        inflight=work.stage.inflight if rehearsal is None else rehearsal.inflight,
        behaviour=behaviour,
        basis=(*_words(work), *basis),
        shared=work.shared_share,
        residents=work.residents,
        seconds=None if rehearsal is None else _seconds(rehearsal, count),
        usd=None if price is None else price.of(usage),
    )


@dataclass(frozen=True, slots=True)
class _Workload:
    """The run that is asked about."""

    agents: int
    report: PrefixReport
    behaviour: Behaviour
    traits: Traits
    max_inflight: int | None

    @property
    def first(self) -> int:
        """Tokens of a first prompt, as the server counts them."""
        return max(1, round(self.report.prompt_tokens * self.behaviour.scale))

    @property
    def shared(self) -> int:
        return min(self.first - 1, round(self.report.shared_tokens * self.behaviour.scale))

    @property
    def found(self) -> int:
        """Tokens of a first prompt that are in the cache already, for all but the first, and on average: groups share
        more than all do. Places are counted without that, as the ledger does."""
        if self.has_places or self.report.predicted is None or self.agents < 2:
            return self.shared
        return min(self.first - 1, round(self.report.predicted * self.first * self.agents / (self.agents - 1)))

    @property
    def shared_share(self) -> float | None:
        if self.report.predicted is not None:
            return self.report.predicted
        return self.shared / self.first * (self.agents - 1) / self.agents if self.agents else None

    @property
    def has_places(self) -> bool:
        """Whether agents come back to contexts in a cache whose size is known."""
        comes_back = any(len(life) > 1 for life in self.behaviour.lives)
        return comes_back and self.traits.kv_tokens is not None and not self.traits.managed_cache

    @property
    def stage(self) -> SimulationSetup:
        is_fixed = self.max_inflight is not None or self.traits.fixed_inflight or self.traits.managed_cache
        inflight = self.max_inflight or self.traits.inflight
        return SimulationSetup(
            self.found, self.first, inflight, is_fixed, self.traits.kv_tokens if self.has_places else None
        )

    @property
    def residents(self) -> int | None:
        """Asked of the ledger that will decide it, once it knows how agents grow."""
        if not self.has_places:
            return None
        ledger, grown = KvLedger(self.traits.kv_tokens, float(self.shared)), round(self.behaviour.grown)
        for agent in range(self.agents + 1):
            ledger.register(str(agent), self.first - self.shared)
            if not ledger.admit(str(agent), 0.0):
                break
            if not agent:
                ledger.on_usage("0", self.first, 0, 0, has_waiters=False)
                ledger.on_usage("0", self.first + grown, 0, 0, has_waiters=False)
                ledger.remove("0")
        return ledger.residents

    @property
    def alive(self) -> int:
        """Agents that are under way at once, about."""
        most = self.stage.inflight if self.stage.is_fixed else max(self.stage.inflight, SimConfig().max_num_seqs)
        return min(self.agents, self.residents or most)

    @property
    def worth_rehearsing(self) -> int:
        turns = self.behaviour.turns
        count = max(_ENOUGH_TURNS / turns, _WAVES * self.alive)
        if count * turns > _MOST_TURNS:
            count = min(_MOST_TURNS / turns, self.alive)  # one wave, as good as it can be
        return min(self.agents, max(1, int(count)))

    def cast(self, count: int) -> list[AgentProfile]:
        """Lives as they were seen, in turn; how long tools take is drawn from all that was seen, because agents whose
        tools take equally long would move in step."""
        lives = self.behaviour.lives
        waits = sorted(turn.tool_seconds for life in lives for turn in life[:-1])
        return [
            tuple(
                replace(turn, tool_seconds=_draw(waits, f"{agent}.{at}")) if at + 1 < len(life) else turn
                for at, turn in enumerate(life)
            )
            for agent, life in ((agent, lives[agent % len(lives)]) for agent in range(count))
        ]

    def usage(self, rehearsal: SimulationResult | None) -> Usage:
        """Of all agents. A later turn finds what came before it in the cache, or as much as it did in a rehearsal."""
        lengths = [prompts(life, self.first) for life in self.behaviour.lives]
        later = fmean(sum(each[1:]) for each in lengths)
        found = later - fmean(_new(life) for life in self.behaviour.lives)
        if rehearsal is not None and rehearsal.later_turns.input:
            found = later * rehearsal.later_turns.cached / rehearsal.later_turns.input
        cached = (self.shared_share or 0.0) * self.first + max(0.0, found)
        if not self.behaviour.is_assumed and not self.behaviour.counts_cached:
            cached = 0.0
        elif self.behaviour.cached is not None and self.traits.managed_cache:
            cached = self.behaviour.cached * (self.first + later) * (self.agents - 1) / max(1, self.agents)
        return Usage(
            round(self.agents * (self.first + later)),
            round(self.agents * cached),
            round(self.agents * self.behaviour.output),
        )


def _new(life: AgentProfile) -> int:
    """Prompt tokens that no turn before has computed or said."""
    return sum(max(0, turn.added - turn.output) for turn in life[:-1])


def _draw(waits: list[float], name: str) -> float:
    place = Random(name).random() * (len(waits) - 1)  # noqa: S311 - the same in every forecast
    low = int(place)
    return waits[low] + (place - low) * (waits[min(low + 1, len(waits) - 1)] - waits[low])


def _rehearsed(work: _Workload, speeds: ServerSpeeds | None) -> tuple[SimulationResult | None, list[str]]:
    if speeds is None or not work.agents:
        return None, ["How long it takes is not known: run a canary to learn it."]
    count = work.worth_rehearsing
    cast = work.cast(count)
    basis = [*speeds.basis] if not work.traits.managed_cache else []
    if count < work.agents:
        fewer = ", which are fewer than can be alive at once" if count < work.alive else ""
        basis.append(f"{count:,} agents were rehearsed{fewer}; the others are taken to come at the same rate.")
    if work.traits.managed_cache:
        basis.append(
            f"Time is from the canary's own, at {work.stage.inflight} requests in flight; the service may allow more, "
            "or refuse some."
        )
        return simulate_constant(
            cast, work.stage, ConstantLatencyServer(speeds.turn_seconds, speeds.seconds_per_token)
        ), basis
    if speeds.engine is None:
        return None, [*basis, "How long it takes is not known: a canary has to be streamed."]
    config = _config(work, speeds.engine, cast)
    rehearsal = simulate(cast, work.stage, config, speeds.overhead)
    if work.traits.kv_running_tokens is None and work.traits.kv_tokens is None:
        basis.append("The size of the KV cache is not known: it is taken to be large enough.")
    elif work.traits.kv_running_tokens not in (None, work.traits.kv_tokens):
        basis.append("What a slower tier of the KV cache keeps was not rehearsed.")
    if rehearsal.inflight >= config.max_num_seqs:
        basis.append(f"The server is taken to run at most {config.max_num_seqs} requests at once.")
    return rehearsal, basis


def _config(work: _Workload, engine: SimConfig, cast: list[AgentProfile]) -> SimConfig:
    """With the server's memory; of more than the agents could ever use, twice that is enough."""
    needed = work.shared + sum(prompts(life, work.first)[-1] + life[-1].output for life in cast)
    blocks = 1 + _ROOMY * needed // engine.block_size
    room = work.traits.kv_running_tokens or work.traits.kv_tokens
    if room is not None:
        longest = max(prompts(life, work.first)[-1] + life[-1].output for life in cast)
        blocks = min(blocks, max(room, longest + engine.block_size) // engine.block_size)
    return replace(
        engine,
        num_blocks=blocks,
        max_num_seqs=work.traits.inflight if work.traits.fixed_inflight else engine.max_num_seqs,
        prefix_caching=work.behaviour.is_assumed or work.behaviour.counts_cached,
    )


def _seconds(rehearsal: SimulationResult, agents: int) -> float:
    """Of a run of so many agents: those beyond the rehearsed ones come at the rate at which agents ended while others
    still waited to start."""
    count = len(rehearsal.ends)
    more = agents - count
    if more <= 0:
        return rehearsal.seconds
    last_start = rehearsal.starts[-1]
    begin = count // 4
    steady = bisect_right(rehearsal.ends, last_start) - begin
    if steady < begin:
        return rehearsal.seconds * agents / count
    span = last_start - rehearsal.ends[begin]
    return rehearsal.seconds + more * span / steady


def _words(work: _Workload) -> list[str]:
    behaviour = work.behaviour
    words = [f"What agents do: {behaviour.source}."]
    if (error := behaviour.output_error) is not None and error > _UNSURE:
        words.append(f"The canary's answers differ in length: output tokens are give or take {error:.0%}.")
    if not behaviour.is_assumed and not behaviour.counts_cached:
        words.append("The server said of no token that it was cached: none is expected to be.")
    if behaviour.tool_seconds:
        words.append("Tools are taken to be as quick for many agents as for few.")
    if work.traits.managed_cache and behaviour.is_assumed:
        words.append("What the service's own cache keeps is taken to be all that is sent again.")
    return words
