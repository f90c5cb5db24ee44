"""What a user asks for, in small groups. Every field is validated here, before anything is sent."""

from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Self

from .errors import SpecError
from .interfaces import Backend
from .requests import Sampling
from .results import AgentResult

_MANY = 10_000


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may happen at once, and how long an agent may talk."""

    max_inflight: int | None = None
    """Requests in flight. None: found by the engine, from what the backend is and from how it answers."""
    max_dispatched: int = _MANY
    """Agents alive at once, counting those that wait for their tools."""
    max_turns: int = 10
    priority: int = 0
    """Against others who use the same server: higher goes first, where the server takes priorities."""
    backpressure_ceiling: int | None = None
    """Requests that may wait at the server, where it tells: fewer are sent when more do. None: a few."""
    calibrate_backend: bool = False
    """Find the number of requests in flight from a low start, by the run's own requests."""

    def __post_init__(self) -> None:
        self._read_old_spellings()
        if self.backpressure_ceiling is not None:
            _at_least("backpressure_ceiling", self.backpressure_ceiling, 1)
        if not isinstance(self.priority, int) or isinstance(self.priority, bool) or abs(self.priority) > 10_000:
            raise SpecError(f"priority must be a whole number between -10000 and 10000; got {self.priority!r}.")
        if self.max_inflight is not None:
            _at_least("max_inflight", self.max_inflight, 1)
        _at_least("max_dispatched", self.max_dispatched, 1)
        _at_least("max_turns", self.max_turns, 1)

    def _read_old_spellings(self) -> None:
        """As batch-agent 0.2 wrote what is the default now: -1 and 0 for no limit."""
        if self.max_inflight == -1:
            object.__setattr__(self, "max_inflight", None)
        if self.max_dispatched == -1:
            object.__setattr__(self, "max_dispatched", _MANY)
        if self.backpressure_ceiling == 0:
            object.__setattr__(self, "backpressure_ceiling", None)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds; None waits for ever. An agent's clock starts with its first turn, not while it is queued."""

    agent: float | None = 1800.0
    turn: float | None = 300.0
    tool: float | None = 60.0

    def __post_init__(self) -> None:
        for name in ("agent", "turn", "tool"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and value > 0):
                raise SpecError(f"timeout_per_{name} must be more than 0 seconds, or None; got {value!r}.")


@dataclass(frozen=True, slots=True)
class Retry:
    """A failed request is sent again, and an answer that does not fit is asked again, each at most so often."""

    max_retries: int = 3
    backoff: float = 0.5
    """Seconds before the first retry; doubles each time, with jitter."""
    backoff_max: float = 30.0
    retry_failed: bool = True
    """Agents that failed for good in an earlier run with the same checkpoint start again."""

    def __post_init__(self) -> None:
        _at_least("max_retries", self.max_retries, 0)
        if not (_is_number(self.backoff_max) and _is_number(self.backoff) and 0 < self.backoff <= self.backoff_max):
            raise SpecError(f"backoff must be between 0 and backoff_max ({self.backoff_max!r}); got {self.backoff!r}.")


@dataclass(frozen=True, slots=True)
class Spend:
    """What the run may spend. Kept across resume; what it cannot pay for any more fails, what is done is kept."""

    max_total_tokens: int | None = None
    """Input and output of all agents. A request that might take more than is left is not sent."""
    max_usd: float | None = None
    deadline: float | None = None
    """Seconds for the run; what is under way then ends."""
    prices: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """By model: dollars for a million tokens of input, cached input and output. None given: a dated table."""

    def __post_init__(self) -> None:
        if self.max_total_tokens is not None:
            _at_least("max_total_tokens", self.max_total_tokens, 1)
        for name in ("max_usd", "deadline"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and value > 0):
                raise SpecError(f"{name} must be more than 0, or None; got {value!r}.")
        if not isinstance(self.prices, Mapping):
            raise SpecError(f"prices must be a dict by model; got {self.prices!r}.")

    @property
    def counts_tokens(self) -> bool:
        return (self.max_total_tokens, self.max_usd) != (None, None)

    @property
    def is_limited(self) -> bool:
        return self.counts_tokens or self.deadline is not None


@dataclass(frozen=True, slots=True)
class Context:
    """What may enter an agent's context."""

    max_tool_tokens: int = 8_000
    """A longer tool result is cut, with a marker that says so (a token is counted as 4 characters)."""
    streaming: bool = False
    """Stream every turn, so that the time to the first token is measured. Costs more client CPU."""
    streaming_tool_dispatch: bool = False
    """Start a tool as soon as its call is whole, while the model still speaks; only tools of effect pure or read."""

    def __post_init__(self) -> None:
        _at_least("max_tool_tokens", self.max_tool_tokens, 1)


@dataclass(frozen=True, slots=True)
class Tooling:
    """What tools remember beyond one call."""

    tool_cache_mb: int = 256
    """Memory for results that agents share."""
    tool_cache_dir: Path | None = None
    """Keeps what pure tools gave for later runs, in this folder."""
    predictive_prewarm: bool = False
    """Make the calls of pure tools ahead that earlier runs of the same task made. Needs tool_cache_dir."""

    def __post_init__(self) -> None:
        _at_least("tool_cache_mb", self.tool_cache_mb, 1)
        if self.tool_cache_dir is not None:
            object.__setattr__(self, "tool_cache_dir", Path(self.tool_cache_dir))
        elif self.predictive_prewarm:
            raise SpecError("predictive_prewarm needs tool_cache_dir=..., where earlier runs left what they called.")


@dataclass(frozen=True, slots=True)
class Prefix:
    """What every agent's prompt starts with."""

    system_prompt: str | None = None
    tool_mode: Literal["auto", "native", "action"] = "auto"
    """native: the server's own tool calls. action: one JSON object per turn, for servers and models without them."""
    strip_preamble: bool = True
    """Take session headers, as some agent CLIs put them first, out of the system prompt: they defeat prefix caches."""
    cache_salt: str | None = None
    """Share the server's prefix cache only with runs of the same salt, where the server knows salts."""
    warm_prefix: bool | None = None
    """Send the shared prefix ahead of the first agents. None: where it pays."""
    kvflow: bool = False
    """Touch the context of an agent that waits for its tools before the server throws it out, where the server tells
    enough to know when, and has nothing better to do."""

    def __post_init__(self) -> None:
        _text_or_none("system_prompt", self.system_prompt)
        _text_or_none("cache_salt", self.cache_salt)
        if self.cache_salt == "":
            raise SpecError("cache_salt must be a text that is not empty, or None.")
        if self.tool_mode not in ("auto", "native", "action"):
            raise SpecError(f"tool_mode must be 'auto', 'native' or 'action'; got {self.tool_mode!r}.")


Input = Any
OnResult = Callable[[AgentResult], Any]


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """One run. `BatchSpec.of(task=..., inputs=..., max_turns=4)` takes the fields of all groups flat."""

    task: str
    inputs: Iterable[Input] | AsyncIterable[Input]
    tools: tuple[Any, ...] = ()
    output_schema: Any = None
    model: str | None = None
    backend: str | Backend = "local://"
    """A URL, or a backend that the caller has opened and will close."""
    checkpoint_dir: Path | None = None
    plan_changed: Literal["stop", "rerun"] = "stop"
    """What to do with a checkpoint that was made with another task, model, schema, tools or sampling: say so, or keep
    its answers for what they were and ask everything anew."""
    on_result: OnResult | None = None
    limits: Limits = field(default_factory=Limits)
    timeouts: Timeouts = field(default_factory=Timeouts)
    retry: Retry = field(default_factory=Retry)
    context: Context = field(default_factory=Context)
    prefix: Prefix = field(default_factory=Prefix)
    tooling: Tooling = field(default_factory=Tooling)
    spend: Spend = field(default_factory=Spend)
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        if not isinstance(self.task, str) or not self.task.strip():
            raise SpecError("task must be a text that says what each agent should do, such as 'Summarize: {text}'.")
        _check_inputs(self.inputs)
        tools = () if self.tools is None else self.tools
        if not isinstance(tools, Iterable) or isinstance(tools, str | Mapping):
            raise SpecError(f"tools must be a list of tools; got {self.tools!r}: write tools=[...].")
        _text_or_none("model", self.model)
        if self.plan_changed not in ("stop", "rerun"):
            raise SpecError(f"plan_changed must be 'stop' or 'rerun'; got {self.plan_changed!r}.")
        if self.on_result is not None and not callable(self.on_result):
            raise SpecError("on_result must be a function that takes one AgentResult.")
        for name, group in _GROUPS.items():
            if not isinstance(getattr(self, name), group):
                raise SpecError(f"{name} must be made with {group.__name__}(...); got {getattr(self, name)!r}.")
        _check_sampling(self.sampling)
        object.__setattr__(self, "tools", tuple(tools))
        if self.checkpoint_dir is not None:
            object.__setattr__(self, "checkpoint_dir", Path(self.checkpoint_dir))

    @classmethod
    def of(cls, **options: Any) -> Self:
        """Builds a spec from flat options; a group may also be given whole, as in `limits=Limits(...)`."""
        own: dict[str, Any] = {}
        grouped: dict[str, dict[str, Any]] = {}
        for name, value in options.items():
            if name in _OWN_FIELDS:
                own[name] = value
            elif name in _FLAT:
                group, member = _FLAT[name]
                if member in grouped.setdefault(group, {}):
                    raise SpecError(f"{name}= says the same thing as another option; keep one of them.")
                grouped[group][member] = value
            else:
                raise SpecError(f"Unknown option {name!r}.{_did_you_mean(name)}")
        for group, members in grouped.items():
            if group in own:
                raise SpecError(f"{group}= and {', '.join(members)}= say the same thing twice; keep one of them.")
            own[group] = _GROUPS[group](**members)
        for required in ("task", "inputs"):
            if required not in own:
                raise SpecError(f"{required}= is missing.")
        return cls(**own)


_GROUPS: dict[str, type[Any]] = {
    "limits": Limits,
    "timeouts": Timeouts,
    "retry": Retry,
    "context": Context,
    "prefix": Prefix,
    "tooling": Tooling,
    "spend": Spend,
    "sampling": Sampling,
}
_OWN_FIELDS = {f.name for f in fields(BatchSpec)}
_FLAT: dict[str, tuple[str, str]] = {
    **{f.name: ("limits", f.name) for f in fields(Limits)},
    **{f"timeout_per_{f.name}": ("timeouts", f.name) for f in fields(Timeouts)},
    **{f.name: ("retry", f.name) for f in fields(Retry)},
    **{f.name: ("context", f.name) for f in fields(Context)},
    **{f.name: ("prefix", f.name) for f in fields(Prefix)},
    **{f.name: ("tooling", f.name) for f in fields(Tooling)},
    **{f.name: ("spend", f.name) for f in fields(Spend)},
    **{f.name: ("sampling", f.name) for f in fields(Sampling)},
    "max_concurrent": ("limits", "max_inflight"),
}


def _did_you_mean(name: str) -> str:
    close = get_close_matches(name, [*_OWN_FIELDS, *_FLAT], n=2)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""


def _check_inputs(inputs: Any) -> None:
    if isinstance(inputs, str | bytes | Mapping):
        raise SpecError(f"inputs must be a list of inputs, not one {type(inputs).__name__}: write inputs=[...].")
    if not isinstance(inputs, Iterable | AsyncIterable):
        raise SpecError(f"inputs must be iterable; got {type(inputs).__name__}.")


def _check_sampling(sampling: Sampling) -> None:
    if sampling.max_tokens is not None:
        _at_least("max_tokens", sampling.max_tokens, 1)
    if sampling.temperature is not None and not (_is_number(sampling.temperature) and sampling.temperature >= 0):
        raise SpecError(f"temperature must be a number of at least 0; got {sampling.temperature!r}.")
    if sampling.top_p is not None and not (_is_number(sampling.top_p) and 0 < sampling.top_p <= 1):
        raise SpecError(f"top_p must be a number above 0 and up to 1; got {sampling.top_p!r}.")
    if sampling.seed is not None and (not isinstance(sampling.seed, int) or isinstance(sampling.seed, bool)):
        raise SpecError(f"seed must be a whole number; got {sampling.seed!r}.")
    if not isinstance(sampling.stop, list | tuple) or not all(isinstance(text, str) for text in sampling.stop):
        raise SpecError(f"stop must be a list of texts; got {sampling.stop!r}: write stop=[...].")
    if not isinstance(sampling.extra, Mapping):
        raise SpecError(f"extra must be a dict of what is sent as it is; got {sampling.extra!r}.")


def _at_least(name: str, value: int, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SpecError(f"{name} must be a whole number of at least {least}; got {value!r}.")


def _text_or_none(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, str):
        raise SpecError(f"{name} must be a text or None; got {value!r}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
