"""Data of a forecast: expected turns, behaviour of agents, the forecast, and its comparison with the run."""

from dataclasses import replace
from statistics import fmean, stdev

from ..core.fast_dataclass import dataclass
from ..core.requests import NO_USAGE, Lane, Usage
from ..core.run_reports import SharedResults
from ..data.results import Results
from ..schedule.reference_model import Read, ReadTurn


@dataclass(frozen=True, slots=True)
class ExpectedTurn:
    """One turn of an agent."""

    output: int
    """Number of generated tokens."""
    added: int
    """Tokens by which the next prompt is longer: the answer as it is sent back, and tool results."""
    tool_seconds: float = 0.0
    """Seconds that the agent waits for its tools after this turn."""
    reads: tuple[Read, ...] = ()
    """Tool results in `added` that other agents may also read, with their tokens and the placement that the run asks
    for. A result without a heading was read by only one agent of the canary, so each agent is assumed to read one of
    its own."""

    def read_turn(self, agent: int, at: int) -> ReadTurn:
        """The turn for a model of references. `agent`: index of the agent. `at`: index of the turn."""
        reads = tuple(
            read if read.heading else replace(read, heading=f"{agent}.{at}.{number}")
            for number, read in enumerate(self.reads)
        )
        inline = self.added - self.output - sum(read.size for read in reads)
        return ReadTurn(self.output, max(0.0, inline), reads)


AgentProfile = tuple[ExpectedTurn, ...]
"""All turns of an agent."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Profiles of some agents, which represent all of them."""

    profiles: tuple[AgentProfile, ...]
    source: str = "assumed"
    """`assumed`, or for example `canary of 4`."""
    scale: float = 1.0
    """Tokens as the server counts them, per token estimated by the plan."""
    counts_cached: bool = True
    """Whether the server reports cached tokens."""
    cached: float | None = None
    """Cached share of the canary's prompts, without its first agent; None without a canary."""
    written: float | None = None
    """Share of the uncached prompt tokens that the provider wrote to its cache; None: all of them, if it bills them."""
    written_hour: float = 0.0
    """As `written`, for tokens that are cached for an hour."""

    @classmethod
    def assumed(cls, *, has_tools: bool, max_turns: int = 10, max_tokens: int | None = None) -> "Behaviour":
        """Behaviour without a canary: an answer of a few hundred tokens, after two turns with tools if there are
        any."""
        answer = ExpectedTurn(min(max_tokens or _ANSWER, _ANSWER), 0)
        if not has_tools:
            return cls(((answer,),))
        call = min(max_tokens or _CALL, _CALL)
        calling = ExpectedTurn(call, call + _RESULT, _TOOL_SECONDS)
        return cls(((*[calling] * min(_CALLING_TURNS, max_turns - 1), answer),))

    @property
    def is_assumed(self) -> bool:
        return self.cached is None

    @property
    def turns(self) -> float:
        return fmean(map(len, self.profiles))

    @property
    def output(self) -> float:
        """Mean output tokens of an agent."""
        return fmean(sum(turn.output for turn in profile) for profile in self.profiles)

    @property
    def output_error(self) -> float | None:
        """Standard error of `output` as a share of it; None if unknown."""
        outputs = [sum(turn.output for turn in profile) for profile in self.profiles]
        return stdev(outputs) / len(outputs) ** 0.5 / self.output if len(outputs) > 1 and self.output else None

    @property
    def reads(self) -> tuple[Read, ...]:
        """All results that agents may share."""
        return tuple(read for profile in self.profiles for turn in profile for read in turn.reads)

    @property
    def places_results(self) -> bool:
        """Whether the run may place results before the agents' own text."""
        return any(read.placement != "inline" for read in self.reads)

    @property
    def grown(self) -> float:
        """Mean tokens by which an agent's last context is longer than its first prompt."""
        return fmean(grown(profile) for profile in self.profiles)

    @property
    def tool_seconds(self) -> float:
        """Mean seconds that an agent waits for its tools."""
        return fmean(sum(turn.tool_seconds for turn in profile) for profile in self.profiles)


def prompts(profile: AgentProfile, first: int) -> tuple[int, ...]:
    """The prompt length of each turn."""
    lengths = [first]
    for turn in profile[:-1]:
        lengths.append(lengths[-1] + turn.added)
    return tuple(lengths)


def grown(profile: AgentProfile) -> int:
    """Tokens by which the last context is longer than the first prompt."""
    return prompts(profile, 0)[-1] + profile[-1].output


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecast of a run. Fields that are None are unknown; `basis` says what would help."""

    agents: int
    usage: Usage
    """Tokens of all agents."""
    inflight: int
    """Maximum number of requests in flight."""
    behaviour: Behaviour
    basis: tuple[str, ...] = ()
    """Assumptions and unknowns, as sentences."""
    shared: float | None = None
    """Expected cached share of the first prompts."""
    residents: int | None = None
    """Number of agents whose contexts fit the KV cache at once; None if unknown, or if agents have a single turn."""
    seconds: float | None = None
    cost: float | None = None
    """Cost in the lane of the run."""
    costs: tuple[tuple[Lane, float], ...] = ()
    """Cost in each lane of the backend; empty if the price is unknown."""
    prices: str = ""
    """Table of the prices, with its version and date; empty if they are the user's."""
    shared_results: SharedResults | None = None
    """Tool results that are placed before the agents' own text or, if `placed` is 0, the possible savings. None if the
    canary shows neither."""

    @property
    def computed(self) -> int:
        """Prompt tokens that are not cached."""
        return self.usage.input - self.usage.cached

    def compare(self, results: Results, seconds: float, cost: float | None = None) -> "Comparison":
        """Compares the forecast with the actual results and duration of the run. `cost`: None for the cost of the
        results."""
        used = sum((result.usage for result in results), NO_USAGE)
        turns = sum(result.turns for result in results)
        residents, cost = results.scheduling.max_residents, results.cost if cost is None else cost
        return self.compare_totals(len(results), turns, used, residents=residents, seconds=seconds, cost=cost)

    def compare_totals(
        self, agents: int, turns: int, used: Usage, *, residents: int | None, seconds: float, cost: float | None
    ) -> "Comparison":
        return Comparison(
            (
                Compared("agents", self.agents, agents),
                Compared("turns", self.agents * self.behaviour.turns, turns),
                Compared("prompt tokens", self.usage.input, used.input),
                Compared("cached", self.usage.cached, used.cached),
                Compared("computed", self.computed, used.input - used.cached),
                Compared("written", self.usage.all_written or None, used.all_written or None),
                Compared("output tokens", self.usage.output, used.output),
                Compared("residents", self.residents, residents),
                Compared("seconds", self.seconds, seconds),
                Compared("cost", self.cost, cost),
            )
        )


@dataclass(frozen=True, slots=True)
class Compared:
    name: str
    forecast: float | None
    fact: float | None

    @property
    def ratio(self) -> float | None:
        """Forecast divided by the actual value; None if either is unknown or the latter is 0."""
        return None if self.forecast is None or not self.fact else self.forecast / self.fact


@dataclass(frozen=True, slots=True)
class Comparison:
    """Forecast and actual values."""

    rows: tuple[Compared, ...]

    def row(self, name: str) -> Compared:
        """Raises KeyError."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)


_ANSWER = 256
_CALL = 100
_RESULT = 400
_TOOL_SECONDS = 1.0
_CALLING_TURNS = 2
