"""Reports of a run: how it was scheduled, and what its prompts share."""

from .fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class LimitChange:
    """The number of requests that may be in flight changed."""

    at: float
    """Seconds from the start of the run."""
    inflight: int
    reason: str


@dataclass(frozen=True, slots=True)
class KeepWarmStats:
    """What `kvflow=True` did: requests that kept contexts in the cache during tool calls."""

    requests: int = 0
    tokens: int = 0
    """Tokens computed for keep-warm requests."""
    hits: int = 0
    """Keep-warm requests that found their context cached."""


@dataclass(frozen=True, slots=True)
class Scheduling:
    """Scheduling report of one run."""

    inflight: int = 0
    """Limit of requests in flight at the end."""
    limits: tuple[LimitChange, ...] = ()
    kv_tokens: int | None = None
    """Capacity of the server's KV cache; None if unknown."""
    kv_limit: int | None = None
    """Tokens of it that residents may use, as found at the end."""
    most_residents: int | None = None
    """Most agents that had residency at once; None if residency was not limited."""
    evictions: int = 0
    """Agents that lost their residency during a long tool call."""
    overcommitted: int = 0
    """Agents admitted beyond the capacity because the engine would have idled."""
    cache_misses: int = 0
    """Turns of residents that found less than half of their context in the cache."""
    keep_warm: KeepWarmStats | None = None
    unavailable: tuple[str, ...] = ()
    """Endpoints out of service at the end, of several, each with its last error."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that keeps prompts from being shared, and what to do about it."""

    kind: str
    """A stable word, safe to group by: timestamp, uuid, unordered, system_prompt, session_header, tool_order ..."""
    message: str
    advice: str

    def __str__(self) -> str:
        return f"{self.message} {self.advice}"


@dataclass(frozen=True, slots=True)
class PrefixReport:
    """Of the first prompts of all agents; what an agent says to itself in later turns is not in here."""

    agents: int | None
    """None when the inputs are read lazily: then nothing is known of them but the first."""
    shared_tokens: int
    """At the beginning of every prompt."""
    prompt_tokens: int
    """Of a prompt, on average."""
    diverges_at: str | None
    """Where the prompts of two agents first differ, in words; None: nowhere."""
    groups: int = 0
    """Sets of agents whose prompts share more than all do."""
    predicted: float | None = None
    """Share of all first prompts that is expected from the prefix cache, if that is large enough."""
    measured: float | None = None
    """The same as the server counted it; None before the run, and where the server does not say."""
    is_calibrated: bool = False
    """The server said how many tokens the first prompt has; else four characters are taken for one."""
    findings: tuple[Finding, ...] = ()

    @property
    def sharing(self) -> float | None:
        """Tokens that are sent for each one that has to be computed: N(S+U)/(S+NU), what sharing without loss can
        give at most."""
        return None if self.predicted is None else 1 / (1 - self.predicted) if self.predicted < 1 else None
