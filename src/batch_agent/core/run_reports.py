"""Reports of a run: what its agents have in common, how it was scheduled, and what its prompts share."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from .fast_dataclass import dataclass
from .messages import ToolSpec
from .schema import JsonSchema


@dataclass(frozen=True, slots=True)
class RunDescription:
    """What all agents of a run have in common, recorded once per process."""

    task: str
    system_prompt: str = ""
    """As the model receives it."""
    tools: tuple[ToolSpec, ...] = ()
    output_schema: JsonSchema | None = None
    """None: answers are text."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options that differ from their defaults, as JSON data. Secrets are masked."""


@dataclass(frozen=True, slots=True)
class LimitChange:
    """Change of the limit of requests in flight."""

    at: float
    """Seconds from the start of the run."""
    inflight: int
    reason: str


@dataclass(frozen=True, slots=True)
class KeepWarmStats:
    """Keep-warm requests of `kvflow=True`, did: requests that kept contexts in the cache during tool calls."""

    requests: int = 0
    tokens: int = 0
    """Tokens computed for keep-warm requests."""
    hits: int = 0
    """Keep-warm requests that found their context cached."""


@dataclass(frozen=True, slots=True)
class Scheduling:
    """Scheduling report of report of a run."""

    inflight: int = 0
    """Limit of requests in flight at the end."""
    limits: tuple[LimitChange, ...] = ()
    kv_tokens: int | None = None
    """Capacity of the server's KV cache; None if unknown."""
    kv_limit: int | None = None
    """Tokens of it that residents may use, as found at the end."""
    max_residents: int | None = None
    """Most agents number of residency at once; None if residency was not limited."""
    evictions: int = 0
    """Agents that lost their residency during a long tool call."""
    overcommitted: int = 0
    """Agents admitted over capacity because the engine would have idled."""
    cache_misses: int = 0
    """Turns of residents that found less than half of their context in the cache."""
    keep_warm: KeepWarmStats | None = None
    unavailable: tuple[str, ...] = ()
    """Endpoints that were unavailable at the end, each with its last error."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Lint finding: something that prevents prefix sharing, and what to do about it."""

    kind: str
    """Stable name, safe to group by: timestamp, uuid, unordered, system_prompt, session_header, tool_order ..."""
    message: str
    advice: str

    def __str__(self) -> str:
        return f"{self.message} {self.advice}"


@dataclass(frozen=True, slots=True)
class PrefixReport:
    """Prefix report on the first prompts of all agents; later turns are not included."""

    agents: int | None
    """None if the inputs are read lazily: then only the first one is known."""
    shared_tokens: int
    """Length of the prefix that all prompts share."""
    prompt_tokens: int
    """Mean length of a prompt."""
    diverges_at: str | None
    """Where prompts first differ, as text for the user; None: nowhere."""
    groups: int = 0
    """Groups of agents whose prompts share a longer prefix."""
    predicted: float | None = None
    """Expected cache hit rate of the first prompts, if the prefix cache is large enough."""
    measured: float | None = None
    """Hit rate as the server reported it; None before the run, or if the server does not report it."""
    is_calibrated: bool = False
    """The server counted the tokens of the first prompt; otherwise a token is taken to be four characters."""
    findings: tuple[Finding, ...] = ()

    @property
    def sharing(self) -> float | None:
        """Tokens sent per token computed, N(S+U)/(S+NU): the upper bound of what sharing can give."""
        return None if self.predicted is None else 1 / (1 - self.predicted) if self.predicted < 1 else None
