"""What a run will be, as far as it can be told before it, and how that compares with what it was."""

from statistics import fmean, stdev

from ..core.fast_dataclass import dataclass
from ..core.requests import NO_USAGE, Usage
from ..data.results import Results


@dataclass(frozen=True, slots=True)
class ExpectedTurn:
    """One turn of an agent."""

    output: int
    """Tokens that the model says."""
    added: int
    """Tokens by which the prompt of the next turn is longer: the answer as it is sent back, and what tools gave."""
    tool_seconds: float = 0.0
    """For which the agent waits for its tools, after this turn."""


AgentProfile = tuple[ExpectedTurn, ...]
"""All turns of an agent."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What agents do: the lives of some, of which the others are taken to be like one or another."""

    lives: tuple[AgentProfile, ...]
    source: str = "assumed"
    """Or: canary of 4."""
    scale: float = 1.0
    """Tokens that the server counts for each one that the plan has estimated."""
    counts_cached: bool = True
    """Whether the server says what it took from its cache."""
    cached: float | None = None
    """Share of a canary's prompts that was cached, of those who were not the first; None where nobody ran."""

    @classmethod
    def assumed(cls, *, has_tools: bool, max_turns: int = 10, max_tokens: int | None = None) -> "Behaviour":
        """Without a canary: an answer of a few hundred tokens, after two turns with tools if there are any."""
        answer = ExpectedTurn(min(max_tokens or _ANSWER, _ANSWER), 0)
        if not has_tools:
            return cls(((answer,),))
        said = min(max_tokens or _CALL, _CALL)
        calling = ExpectedTurn(said, said + _RESULT, _TOOL_SECONDS)
        return cls(((*[calling] * min(_CALLING_TURNS, max_turns - 1), answer),))

    @property
    def is_assumed(self) -> bool:
        return self.cached is None

    @property
    def turns(self) -> float:
        return fmean(map(len, self.lives))

    @property
    def output(self) -> float:
        """Tokens that an agent says in its life."""
        return fmean(sum(turn.output for turn in life) for life in self.lives)

    @property
    def output_error(self) -> float | None:
        """How far that may be off because few were asked, as a share of it; None where it cannot be told."""
        said = [sum(turn.output for turn in life) for life in self.lives]
        return stdev(said) / len(said) ** 0.5 / self.output if len(said) > 1 and self.output else None

    @property
    def grown(self) -> float:
        """Tokens by which an agent's context is longer than its first prompt when it ends."""
        return fmean(grown(life) for life in self.lives)

    @property
    def tool_seconds(self) -> float:
        """For which an agent waits for its tools in its life."""
        return fmean(sum(turn.tool_seconds for turn in life) for life in self.lives)


def prompts(life: AgentProfile, first: int) -> tuple[int, ...]:
    """The length of each turn's prompt."""
    lengths = [first]
    for turn in life[:-1]:
        lengths.append(lengths[-1] + turn.added)
    return tuple(lengths)


def grown(life: AgentProfile) -> int:
    return prompts(life, 0)[-1] + life[-1].output


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of one run. What is None cannot be told from what is known; `basis` says what would help."""

    agents: int
    usage: Usage
    """Tokens of all agents together."""
    inflight: int
    """Requests in flight at most."""
    behaviour: Behaviour
    basis: tuple[str, ...] = ()
    """What this rests on and what is not known, in words."""
    shared: float | None = None
    """Share of the first prompts that is expected from the prefix cache."""
    residents: int | None = None
    """Agents whose contexts fit the KV cache at once; None where nobody knows, or nobody comes back to a context."""
    seconds: float | None = None
    usd: float | None = None

    @property
    def computed(self) -> int:
        """Prompt tokens that are not taken from a cache."""
        return self.usage.input - self.usage.cached

    def against(self, results: Results, seconds: float, usd: float | None = None) -> "Comparison":
        """The run as it was: what came out of it, how long it took, what it cost."""
        used = sum((result.usage for result in results), NO_USAGE)
        turns = sum(result.turns for result in results)
        residents = results.scheduling.most_residents
        return self.compared(len(results), turns, used, residents=residents, seconds=seconds, usd=usd)

    def compared(
        self, agents: int, turns: int, used: Usage, *, residents: int | None, seconds: float, usd: float | None
    ) -> "Comparison":
        return Comparison(
            (
                Compared("agents", self.agents, agents),
                Compared("turns", self.agents * self.behaviour.turns, turns),
                Compared("prompt tokens", self.usage.input, used.input),
                Compared("cached", self.usage.cached, used.cached),
                Compared("computed", self.computed, used.input - used.cached),
                Compared("output tokens", self.usage.output, used.output),
                Compared("residents", self.residents, residents),
                Compared("seconds", self.seconds, seconds),
                Compared("usd", self.usd, usd),
            )
        )


@dataclass(frozen=True, slots=True)
class Compared:
    name: str
    forecast: float | None
    fact: float | None

    @property
    def ratio(self) -> float | None:
        """Forecast by fact; None where either is not known, or there was nothing."""
        return None if self.forecast is None or not self.fact else self.forecast / self.fact


@dataclass(frozen=True, slots=True)
class Comparison:
    """Forecast and fact."""

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
