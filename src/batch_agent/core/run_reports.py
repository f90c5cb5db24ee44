"""Reports of a run: what its agents have in common, how it was scheduled, and what its prompts share."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from .fast_dataclass import dataclass
from .messages import ToolSpec
from .requests import Lane
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
class CascadeReport:
    """Which items of a filter its proxy decided, and which the strong model."""

    rows: int
    asked: int
    """Items that the strong model decided, labels included."""
    rejected: int = 0
    """Items that were dropped because of a low score."""
    kept: int = 0
    """Items that were kept because of a high score."""
    low: float | None = None
    """The highest score of a rejected item; None if the strong model decided all items with low scores."""
    high: float | None = None
    """The lowest score of a kept item."""
    reason: str = ""
    """Why the strong model decided all items; empty if it did not."""

    def __str__(self) -> str:
        if self.reason:
            return f"the strong model decided all {self.rows:,} items: {self.reason}"
        decided = []
        if self.rejected:
            decided.append(f"{self.rejected:,} dropped (score <= {self.low:.4g})")
        if self.kept:
            decided.append(f"{self.kept:,} kept (score >= {self.high:.4g})")
        return f"the strong model decided {self.asked:,} of {self.rows:,} items, the proxy {' and '.join(decided)}"


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
class SharedResults:
    """Tool results that agents share, and what it saves to put them before the agents' own text. Estimated from the
    lengths of the agents' texts, for a server that keeps every prefix; of a large run from its first agents."""

    references: int
    """Results that were placed first; with `placed` 0 those that several agents read."""
    agents: int
    """Agents that read them."""
    placed: int
    """How often a result was placed first; 0: none was, and the fields below are what could be gained."""
    saved_tokens: int
    """Prompt tokens that need not be computed; negative if more had to be."""
    saved_share: float
    """The same as a share of the tokens that are computed with every result behind its call."""
    stored_once: int | None = None
    """Most tokens that residents had in common at a time, which the KV cache holds once; None if it is not known."""


@dataclass(frozen=True, slots=True)
class Pacing:
    """Limits per minute by which requests were spread over time."""

    rpm: int | None = None
    """Requests per minute; None: no limit is known."""
    tpm: int | None = None
    """Tokens per minute; only those of prompts where the service counts both apart."""
    output_tpm: int | None = None
    """Generated tokens per minute, where the service counts them apart."""
    is_reported: bool = False
    """The limits are the service's; otherwise those of the options, which are lower."""
    delayed: int = 0
    """Requests that waited for their time; 0: the limits were never reached."""

    def __str__(self) -> str:
        limits = [
            f"{limit:,} {name}/min"
            for limit, name in (
                (self.rpm, "requests"),
                (self.tpm, "tokens" if self.output_tpm is None else "prompt tokens"),
                (self.output_tpm, "generated tokens"),
            )
            if limit is not None
        ]
        *first, last = limits
        both = f"{', '.join(first)} and {last}" if first else last
        source = "the service's limit" if self.is_reported else "as set"
        return f"{both} ({source})"


@dataclass(frozen=True, slots=True)
class LaneUse:
    """Requests of a run by lane."""

    requests: tuple[tuple[Lane, int], ...] = ()
    """Answered requests of each lane that was used."""
    refused: int = 0
    """Flex requests that were refused for capacity, and sent again."""

    def __str__(self) -> str:
        counts = dict(self.requests)
        standard = counts.pop("standard", 0)
        parts = [f"{count:,} {_requests(count)} in lane {lane}" for lane, count in counts.items()]
        if standard:
            parts.append(f"{standard:,} {_requests(standard)} fell back to standard")
        if self.refused:
            parts.append(f"{self.refused:,} refused for capacity")
        return ", ".join(parts)


def _requests(count: int) -> str:
    return "request" if count == 1 else "requests"


@dataclass(frozen=True, slots=True)
class Scheduling:
    """Scheduling report of a run."""

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
    shared_results: SharedResults | None = None
    """Results placed first, or what that would gain; None if that is little."""
    pace: Pacing | None = None
    """None if no limit per minute is set or reported."""
    lanes: LaneUse | None = None
    """None if all requests were to take the lane standard."""


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
    shared_results: SharedResults | None = None
    """As in the scheduling report; None before the run."""
    inline_tools: tuple[str, ...] = ()
    """Tools whose results agents share, and which stand behind the agents' own text."""

    @property
    def sharing(self) -> float | None:
        """Tokens sent per token computed, N(S+U)/(S+NU): the upper bound of what sharing can give."""
        return None if self.predicted is None else 1 / (1 - self.predicted) if self.predicted < 1 else None
