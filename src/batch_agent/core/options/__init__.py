"""Options of a run, in groups. Every field is validated here, before any request is sent."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from ..errors import SpecError
from ..fast_dataclass import dataclass
from ..validation import at_least, flags, is_number, is_whole, path, seconds, text_or_none
from .price import PRICE_FORMAT, parse_price

_MAX_SHOWN = 20
_AGENT_TIMEOUT, _TURN_TIMEOUT = 1800.0, 300.0
_LANE_TIMEOUTS: Mapping[str, tuple[float | None, float | None]] = {
    "flex": (14_400.0, 900.0),
    "batch": (None, None),
    "auto": (None, _TURN_TIMEOUT),
}
"""Default limits of an agent and of a turn. OpenAI and Google answer flex requests within 15 minutes as a rule."""
INPUT_FORMATS = ("jsonl", "json", "csv", "tsv", "parquet", "lines")
_STORES = ("redis://", "rediss://", "redis+sentinel://", "rediss+sentinel://", "unix://")
_RUN_ID = re.compile(r"[\w.-]{1,100}")


@dataclass(frozen=True, slots=True)
class Rows:
    """Which of the inputs are used, and which field identifies one. First `where` applies, then `sample`, then
    `limit`."""

    limit: int | None = None
    """Use only the first inputs, up to this number."""
    sample: int | None = None
    """Use a random sample of this many inputs, in input order. A larger sample contains every smaller one."""
    sample_seed: int = 0
    """Another seed gives another sample; the same seed always gives the same one."""
    where: str | Callable[[Any], Any] | None = None
    """Use only matching inputs: a condition on fields such as "stars <= 2 and lang = 'en'", or a function."""
    input_format: Literal["jsonl", "json", "csv", "tsv", "parquet", "lines"] | None = None
    """Format of files, downloads and standard input. None: by the suffix; standard input is JSON lines."""
    encoding: str | None = None
    """Encoding of input files that are not UTF-8, such as "cp1252". None: they are refused, unless a byte order mark
    names it."""
    key: str | None = None
    """Field that identifies an input: its value is the key of the result, and must be unique."""
    images: Sequence[str] = ()
    """Fields of the task whose texts are paths or URLs of images. Other values are known to be images: `Image(...)`,
    images of Pillow, and bytes."""

    def __post_init__(self) -> None:
        for name in ("limit", "sample"):
            if getattr(self, name) is not None:
                at_least(name, getattr(self, name), 1)
        if not is_whole(self.sample_seed):
            raise SpecError(f"sample_seed must be an integer; got {self.sample_seed!r}.")
        if (
            self.where is not None
            and not callable(self.where)
            and not (isinstance(self.where, str) and self.where.strip())
        ):
            raise SpecError(f'where must be a condition such as "stars <= 2", or a function; got {self.where!r}.')
        if self.input_format is not None and self.input_format not in INPUT_FORMATS:
            raise SpecError(
                f"input_format must be one of {', '.join(INPUT_FORMATS)}, or None; got {self.input_format!r}."
            )
        _check_encoding(self.encoding)
        text_or_none("key", self.key)
        if self.key == "":
            raise SpecError("key must be the name of a field of the inputs, or None; got ''.")
        if not isinstance(self.images, list | tuple) or not all(isinstance(name, str) and name for name in self.images):
            raise SpecError(f"images must be a list of fields of the task; got {self.images!r}: write images=[...].")
        object.__setattr__(self, "images", tuple(self.images))

    def of_read_inputs(self) -> "Rows":
        """The options that still apply to inputs that were read, and so are selected already."""
        return Rows(key=self.key, encoding=self.encoding, images=self.images)

    @property
    def selects(self) -> bool:
        """Whether some inputs may be left out."""
        return (self.limit, self.sample, self.where) != (None, None, None)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of concurrency and of turns."""

    max_inflight: int | None = None
    """Requests in flight. None: found by the engine during the run."""
    max_agents: int | None = None
    """Concurrent agents, including those that wait for tools. None: 10,000; 20 where each is a program."""
    max_turns: int | None = None
    """Requests to the model that an agent may make. None: 10; 50 where it is a program."""
    priority: int = 0
    """Priority relative to other clients of the server: higher goes first, if the server supports priorities."""
    backpressure_ceiling: int | None = None
    """Requests that may be queued at a server that reports its queue. None: a few."""
    rpm: int | None = None
    """Requests per minute that are sent to the backend, by all workers together. None: as many as it reports that it
    accepts, or as it answers."""
    tpm: int | None = None
    """Tokens per minute of the requests to the backend, input and output, by all workers together. None: as for rpm."""
    calibrate_backend: bool = False
    """Start the search for the number of requests in flight low, for an unknown server."""

    def __post_init__(self) -> None:
        self._read_old_spellings()
        if self.backpressure_ceiling is not None:
            at_least("backpressure_ceiling", self.backpressure_ceiling, 1)
        if not is_whole(self.priority) or abs(self.priority) > 10_000:
            raise SpecError(f"priority must be an integer between -10000 and 10000; got {self.priority!r}.")
        for name in ("max_inflight", "max_agents", "max_turns", "rpm", "tpm"):
            if getattr(self, name) is not None:
                at_least(name, getattr(self, name), 1)
        flags(self, "calibrate_backend")

    def _read_old_spellings(self) -> None:
        """Accepts -1 and 0 for no limit, as batch-agent 0.2 did."""
        if self.max_inflight == -1:
            object.__setattr__(self, "max_inflight", None)
        if self.max_agents == -1:
            object.__setattr__(self, "max_agents", None)
        if self.backpressure_ceiling == 0 and self.backpressure_ceiling is not False:
            object.__setattr__(self, "backpressure_ceiling", None)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time limits in seconds; None for no limit. An agent's clock starts with its first turn."""

    agent: float | None = _AGENT_TIMEOUT
    """Seconds for an agent, from its first turn on. By default 4 hours in lane flex, unlimited in batch and auto."""
    turn: float | None = _TURN_TIMEOUT
    """Seconds for a request to the model. By default 900 in lane flex, and unlimited in lane batch."""
    tool: float | None = 60.0
    """Seconds for a tool call."""

    def __post_init__(self) -> None:
        for name in ("agent", "turn", "tool"):
            seconds(f"timeout_per_{name}", getattr(self, name), or_none=True)

    def in_lane(self, lane: str) -> "Timeouts":
        """The limits in a lane: defaults of the lane standard become those of this one."""
        if lane == "standard":
            return self
        agent, turn = _LANE_TIMEOUTS[lane]
        return Timeouts(
            agent if self.agent == _AGENT_TIMEOUT else self.agent,
            turn if self.turn == _TURN_TIMEOUT else self.turn,
            self.tool,
        )


@dataclass(frozen=True, slots=True)
class Retry:
    """Retries of failed requests, and of answers that do not fit the schema."""

    max_retries: int = 3
    """Retries of a failed request, and repairs of an answer that does not fit the schema."""
    backoff: float = 0.5
    """Seconds before the first retry; doubles each time, with jitter."""
    backoff_max: float = 30.0
    """Longest wait before a retry, in seconds."""
    retry_failed: bool = True
    """Start agents again that failed permanently in an earlier run with the same checkpoint."""

    def __post_init__(self) -> None:
        at_least("max_retries", self.max_retries, 0)
        seconds("backoff_max", self.backoff_max)
        if not (is_number(self.backoff) and 0 < self.backoff <= self.backoff_max):
            raise SpecError(f"backoff must be between 0 and backoff_max ({self.backoff_max!r}); got {self.backoff!r}.")
        flags(self, "retry_failed")


@dataclass(frozen=True, slots=True)
class SpendingLimits:
    """Budget of the run, kept across resume. Agents beyond it fail; completed results are kept."""

    max_total_tokens: int | None = None
    """Tokens that all agents may use, input and output. A request that might take more than is left is not sent."""
    max_usd: float | None = None
    """Dollars that all agents may spend, by `prices`."""
    deadline: float | None = None
    """Seconds for the run; agents in progress then fail."""
    prices: Mapping[str, Sequence[float] | Mapping[str, Any]] = field(default_factory=dict)
    """By model: dollars per million tokens of input, cached input and output, or a dict that also has the prices of
    cache writes and long prompts. None given: a dated table."""

    def __post_init__(self) -> None:
        if self.max_total_tokens is not None:
            at_least("max_total_tokens", self.max_total_tokens, 1)
        if self.max_usd is not None and not (is_number(self.max_usd) and self.max_usd > 0):
            raise SpecError(f"max_usd must be more than 0, or None; got {self.max_usd!r}.")
        seconds("deadline", self.deadline, or_none=True)
        if not isinstance(self.prices, Mapping) or not all(isinstance(model, str) for model in self.prices):
            raise SpecError(f"prices must be a dict by model; got {self.prices!r}.")
        for model, price in self.prices.items():
            try:
                parse_price(price)
            except ValueError:
                raise SpecError(f"prices[{model!r}] must be {PRICE_FORMAT}; got {price!r}.") from None

    @property
    def counts_tokens(self) -> bool:
        return (self.max_total_tokens, self.max_usd) != (None, None)


@dataclass(frozen=True, slots=True)
class ContextLimits:
    """Limits of an agent's context."""

    max_tool_tokens: int = 8_000
    """A longer tool result is truncated, with a marker (a token is counted as 4 characters)."""
    streaming: bool = False
    """Stream every turn, so that the time to the first token is measured. Costs more client CPU."""
    streaming_tool_dispatch: bool = False
    """Start a tool as soon as its call is complete in the stream; only tools of effect pure or read."""
    context_tokens: int | None = None
    """Context window of the model. None: the server's; if unknown, nothing is checked or compacted."""
    oversized: Literal["refuse", "chunk"] = "refuse"
    """An input that does not fit the window fails before it is sent, or is split, and the answers to its parts are
    merged."""
    compact_at: float | None = 0.85
    """Share of the window beyond which old tool results are removed from a conversation. None: never."""
    compact_with: Literal["elide", "summarize"] = "elide"
    """What replaces removed tool results: a line that says so, or a summary by the model."""
    compact_model: str | None = None
    """Model that writes the summaries, if not the model of the run."""

    def __post_init__(self) -> None:
        at_least("max_tool_tokens", self.max_tool_tokens, 1)
        if self.context_tokens is not None:
            at_least("context_tokens", self.context_tokens, 1)
        if self.oversized not in ("refuse", "chunk"):
            raise SpecError(f"oversized must be 'refuse' or 'chunk'; got {self.oversized!r}.")
        if self.compact_at is not None and not (is_number(self.compact_at) and 0 < self.compact_at <= 1):
            raise SpecError(f"compact_at must be a number > 0 and <= 1, or None; got {self.compact_at!r}.")
        if self.compact_with not in ("elide", "summarize"):
            raise SpecError(f"compact_with must be 'elide' or 'summarize'; got {self.compact_with!r}.")
        flags(self, "streaming", "streaming_tool_dispatch")
        text_or_none("compact_model", self.compact_model)
        if self.compact_model is not None and self.compact_with != "summarize":
            raise SpecError("compact_model= needs compact_with='summarize'.")


@dataclass(frozen=True, slots=True)
class ToolCaching:
    """Caches of tool results."""

    tool_cache_mb: int = 256
    """Memory for tool results that agents share, in MiB."""
    tool_cache_dir: Path | None = None
    """Directory that keeps the results of pure tools for later runs."""
    predictive_prewarm: bool = False
    """Execute in advance the calls of pure tools that earlier runs of the same task made. Needs tool_cache_dir."""

    def __post_init__(self) -> None:
        at_least("tool_cache_mb", self.tool_cache_mb, 1)
        flags(self, "predictive_prewarm")
        if self.tool_cache_dir is not None:
            object.__setattr__(self, "tool_cache_dir", path("tool_cache_dir", self.tool_cache_dir))
        elif self.predictive_prewarm:
            raise SpecError("predictive_prewarm needs tool_cache_dir=..., where earlier runs recorded their calls.")


@dataclass(frozen=True, slots=True)
class Distributed:
    """Distribution of a run over processes and machines."""

    cluster: str | None = None
    """Agents run on a Ray cluster: "ray" for the one that this process belongs to, or a local one; "ray://host:10001"
    for one elsewhere."""
    workers: int | None = None
    """Processes of the cluster that run agents. None: one for each node."""
    store: str | None = None
    """Progress is kept on this Redis server ("redis://host:6379/0"), where other processes can join the run: the same
    program started again, on any machine, or `batch-agent worker`."""
    run_id: str | None = None
    """Name of the run in the store. None: made from the task."""
    lease: float = 15.0
    """Seconds without a heartbeat after which a worker is considered lost and other workers continue its agents."""

    def __post_init__(self) -> None:
        for name in ("cluster", "store", "run_id"):
            text_or_none(name, getattr(self, name))
        if self.cluster is not None and self.cluster != "ray" and not self.cluster.startswith("ray://"):
            raise SpecError(f"cluster must be 'ray', or 'ray://host:port'; got {self.cluster!r}.")
        if self.store is not None and not self.store.startswith(_STORES):
            kind = self.store.partition("://")[0][:_MAX_SHOWN]  # truncated, because it may hold a password
            hint = " For several servers, use redis+sentinel://." if "cluster" in kind else ""
            raise SpecError(
                f"store must be a URL such as 'redis://host:6379/0'; got one that begins with {kind!r}.{hint}"
            )
        if self.workers is not None:
            at_least("workers", self.workers, 1)
            if self.cluster is None:
                raise SpecError("workers= needs cluster='ray'.")
        if self.run_id is not None and not _RUN_ID.fullmatch(self.run_id):
            raise SpecError(f"run_id must consist of letters, digits, '.', '_' and '-'; got {self.run_id!r}.")
        if self.run_id is not None and self.store is None:
            raise SpecError("run_id= needs store='redis://...'.")
        seconds("lease", self.lease, least=1)


@dataclass(frozen=True, slots=True)
class Prefix:
    """Shared prefix of the prompts."""

    system_prompt: str | None = None
    """First message of each conversation, the same for all agents."""
    tool_mode: Literal["auto", "native", "action"] = "auto"
    """native: the server's own tool calls. action: one JSON object per turn, for servers and models without them."""
    strip_preamble: bool = True
    """Remove session headers of agent CLIs from the head of the system prompt: they defeat prefix caches."""
    cache_salt: str | None = None
    """Share the server's prefix cache only with runs of the same salt, if the server supports salts."""
    warm_prefix: bool | None = None
    """Send the shared prefix ahead of the first agents. None: where it pays."""
    hoist: bool = True
    """Move a long value that is the same in all inputs into the shared part of the prompt."""
    reorder: bool = True
    """Process inputs that begin alike one after the other. Results stay in input order."""
    strict_prefix: bool = False
    """Reject a run for which lint finds something that prevents sharing."""
    shared_results: Literal["inline", "first", "auto"] = "inline"
    """Where the results of read and pure tools stand: behind their call, before what is the agent's own, where a result
    that several agents read is computed once, or wherever less has to be computed."""
    kvflow: bool = False
    """Send keep-warm requests for agents that wait for tools before the server evicts their contexts, if the server has
    capacity to spare and reports enough to know when."""

    def __post_init__(self) -> None:
        flags(self, "strip_preamble", "hoist", "reorder", "strict_prefix", "kvflow")
        if self.warm_prefix is not None:
            flags(self, "warm_prefix")
        text_or_none("system_prompt", self.system_prompt)
        text_or_none("cache_salt", self.cache_salt)
        if self.cache_salt == "":
            raise SpecError("cache_salt must be a non-empty string or None.")
        if self.tool_mode not in ("auto", "native", "action"):
            raise SpecError(f"tool_mode must be 'auto', 'native' or 'action'; got {self.tool_mode!r}.")
        if self.shared_results not in ("inline", "first", "auto"):
            raise SpecError(f"shared_results must be 'inline', 'first' or 'auto'; got {self.shared_results!r}.")


def _check_encoding(encoding: Any) -> None:
    try:
        "".encode("utf-8" if encoding is None else encoding)
    except (LookupError, TypeError, ValueError):
        raise SpecError(
            f"encoding must be the name of a text encoding, such as 'cp1252' or 'latin-1', or None; got {encoding!r}."
        ) from None
