"""Specification of a run: `BatchSpec` and its validation."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import field, fields, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from .errors import SpecError
from .fast_dataclass import dataclass
from .options import ContextLimits, Distributed, Limits, Prefix, Retry, Rows, SpendingLimits, Timeouts, ToolCaching
from .options.backend_settings import BackendSettings, check_backend, joint_limit
from .options.evaluation import Evaluation
from .options.extra_fields import check_extra
from .options.flat_options import FLAT, OPTION_GROUPS, group_options
from .options.run_options import SpecOptions
from .program_runtime import Runtime
from .protocols.backend import Backend
from .requests import Sampling
from .results import OnResult
from .task_fields import Fields, check_inputs
from .validation import (
    at_least,
    explain_unknown_name,
    is_number,
    is_whole,
    local_path,
    path_or_url,
    text_or_none,
    valid_unicode,
)

_MAX_AGENTS = 10_000
_MAX_AGENTS_IN_BATCHES = 50_000
"""As many requests as OpenAI takes in one batch."""
_MAX_PROGRAMS = 20
_MAX_TURNS = 10
_MAX_PROGRAM_TURNS = 50
_PATHS: dict[str, Callable[[str, Any], Any]] = {
    "checkpoint_dir": local_path,
    "out": path_or_url,
    "log_requests": local_path,
}


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """Specification of one run. The fields of all groups may be given, and read, flat:
    `BatchSpec(task=..., inputs=..., max_turns=4)`, for type checkers `BatchSpec.of(...)`."""

    task: str | Fields
    """Prompt template of an agent: `{field}` is replaced by that field of its input."""
    inputs: Any
    """An iterable, sync or async; or a file, a folder, a table, a dataset or a query that holds them: docs/data.md."""
    tools: Collection[Any] = ()
    """Functions, `Tool` objects, MCP servers or LangChain tools that agents may call: docs/tools.md."""
    output_schema: Any = None
    """Type of an answer: a Pydantic model, any type, or a JSON schema as a dict. None: text."""
    model: str | None = None
    """Name of the model. None: the only one that the server has."""
    backend: str | BackendSettings | Sequence[str | BackendSettings] | Backend = "local://"
    """A URL, or Backend(url, api_key=...) with a key, headers or limits of its own; several, of endpoints that serve
    the same model, or what lists these: hostfile://PATH, dns://NAME:PORT, command:PROGRAM; or a backend that the
    caller has opened and will close."""
    fallback: Sequence[Any] = ()
    """Fallbacks for agents that the backend cannot serve, because it is out or refuses: names of models on the same
    backend, other backends, or NAME=URL for a model of another backend, in this order. See docs/backends.md."""
    lane: Literal["standard", "flex", "batch", "auto"] = "standard"
    """flex: ordinary requests at half the price, which may wait for capacity. batch: requests in files that the
    provider works off within hours, at half the price. auto: the cheapest lane that the deadline leaves time for.
    docs/lanes.md says which backends have which."""
    runtime: Runtime | None = None
    """Programs that do the work, such as OpenCodeRuntime(...): docs/coding-agents.md. Its backend and model
    override those of the run."""
    checkpoint_dir: Path | None = None
    """Directory that records every turn. A run with the same directory continues where the last one stopped. As an
    option of a run or a flow also in an object store: docs/data.md."""
    plan_changed: Literal["stop", "rerun"] = "stop"
    """What to do with a checkpoint that was made with another task, model, schema, tools or sampling: raise
    PlanMismatch, or run everything again and keep the old answers."""
    on_result: OnResult | None = None
    """Function that is called with each result as it arrives, sync or async."""
    out: Path | str | None = None
    """A .jsonl, .csv or .parquet file, to which each result is written before it is handed over; or a folder in an
    object store, such as s3://bucket/out/, which gets parts and a manifest."""
    log_requests: Path | None = None
    """A .jsonl file, to which each request to the model and its raw response are appended, without secrets."""
    tokens: bool = False
    """Keep the token ids and log probabilities of each turn in the checkpoint, as the engine has them, for trainers.
    Needs vLLM or SGLang, and checkpoint_dir: docs/rollouts.md."""
    rows: Rows = field(default_factory=Rows)
    limits: Limits = field(default_factory=Limits)
    timeouts: Timeouts = field(default_factory=Timeouts)
    retry: Retry = field(default_factory=Retry)
    context: ContextLimits = field(default_factory=ContextLimits)
    prefix: Prefix = field(default_factory=Prefix)
    tool_caching: ToolCaching = field(default_factory=ToolCaching)
    spending: SpendingLimits = field(default_factory=SpendingLimits)
    distribution: Distributed = field(default_factory=Distributed)
    sampling: Sampling = field(default_factory=Sampling)
    evaluation: Evaluation = field(default_factory=Evaluation)

    def __post_init__(self) -> None:
        if not isinstance(self.task, Fields) and not (isinstance(self.task, str) and self.task.strip()):
            raise SpecError("task must be a string that says what each agent should do, such as 'Summarize: {text}'.")
        check_inputs(self.inputs)
        tools = () if self.tools is None else self.tools
        if not isinstance(tools, Iterable) or isinstance(tools, str | Mapping):
            raise SpecError(f"tools must be a list of tools; got one {type(self.tools).__name__}: write tools=[...].")
        if isinstance(self.task, str):
            valid_unicode("task", self.task)
        self._apply_runtime()
        text_or_none("model", self.model)
        if self.model == "":
            raise SpecError("model must be a model name, or None if the server has only one model; got ''.")
        check_backend(self.backend)
        if isinstance(self.backend, list | Set):
            object.__setattr__(self, "backend", tuple(self.backend))
        given = self.backend if isinstance(self.backend, tuple) else (self.backend,)
        if settings := [each for each in given if isinstance(each, BackendSettings)]:
            self._apply_backend_settings(settings, len(given))
        if self.fallback != ():
            self._check_fallback()
        if self.lane not in ("standard", "flex", "batch", "auto"):
            raise SpecError(f"lane must be 'standard', 'flex', 'batch' or 'auto'; got {self.lane!r}.")
        if self.lane == "batch":
            self._check_batch_lane()
        if self.plan_changed not in ("stop", "rerun"):
            raise SpecError(f"plan_changed must be 'stop' or 'rerun'; got {self.plan_changed!r}.")
        if self.on_result is not None and not callable(self.on_result):
            raise SpecError("on_result must be a function that takes one AgentResult.")
        for name, group in OPTION_GROUPS.items():
            if not isinstance(getattr(self, name), group):
                raise SpecError(f"{name} must be made with {group.__name__}(...); got {getattr(self, name)!r}.")
        check_sampling(self.sampling)
        if self.evaluation.models is not None:
            self._check_models()
        check_extra(self.sampling.extra, has_schema=self.output_schema is not None, has_lane=self.lane != "standard")
        if not isinstance(tools, Set):  # a set stays a set, so that lint reports its undefined order
            tools = tuple(tools)
        object.__setattr__(self, "tools", tools)
        for name, check in _PATHS.items():
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, check(name, value))
        if self.tokens is not False:
            self._check_tokens()

    def _check_fallback(self) -> None:
        """Raises SpecError."""
        fallback = () if self.fallback is None else self.fallback
        if isinstance(fallback, str | Mapping) or not isinstance(fallback, Sequence) or "" in fallback:
            raise SpecError(f"fallback must be a list of models and backends; got {self.fallback!r}.")
        for entry in fallback:
            if not isinstance(entry, str):
                check_backend(entry)
        object.__setattr__(self, "fallback", tuple(fallback))
        if not fallback:
            return
        if self.distribution.cluster is not None:
            raise SpecError(
                "fallback= does not work with cluster=: the caller of a run on Ray sends no requests, and so does not "
                "see that a backend is out. Pass store= and start workers with BatchAgent.work, or run a flow, whose "
                ".escalate(...) runs failed items again: Flow(inputs, cluster='ray').map('answer', task).escalate("
                "when=lambda item: False, model=...)."
            )
        if self.runtime is not None and not self.runtime.gateway:
            raise SpecError(
                "fallback= needs a runtime whose requests go through the gateway: with gateway=False, it is not known "
                "whether a program failed because of its model. Set gateway=True."
            )
        if self.evaluation.models is not None:
            raise SpecError(
                "fallback= and models= exclude each other: models= compares models, and an answer of another one would "
                "count for the model that failed. Omit one of them; servers of one model that stand in for each other "
                "are models={'NAME': 'hostfile://PATH'}."
            )

    def _check_models(self) -> None:
        if self.model is not None:
            raise SpecError("model= and models= are both given: keep one of them.")
        if self.runtime is not None:
            raise SpecError("models= is for agents without a runtime: run each model by itself.")

    def _check_tokens(self) -> None:
        if self.tokens is not True:
            raise SpecError(f"tokens must be True or False; got {self.tokens!r}.")
        if self.distribution.store is not None or self.distribution.cluster is not None:
            raise SpecError(
                "tokens=True keeps token ids in the checkpoint of one process: omit store= and cluster=, and give each "
                "process a part of the inputs and a checkpoint_dir of its own."
            )
        if self.context.oversized == "chunk":
            raise SpecError("tokens=True is for agents that read their input whole: omit oversized='chunk'.")
        if self.lane != "standard":
            raise SpecError(f"tokens=True is for lane='standard': no server returns token ids in lane {self.lane!r}.")
        if self.context.streaming or self.context.streaming_tool_dispatch:
            raise SpecError(
                "tokens=True needs whole replies, since SGLang streams no token ids: omit streaming= and "
                "streaming_tool_dispatch=."
            )
        if self.runtime is not None and not self.runtime.gateway:
            raise SpecError("tokens=True needs the gateway: requests that a program sends itself have no token ids.")

    @property
    def max_dispatched(self) -> int:
        if self.runtime is not None:
            return self.limits.max_agents or _MAX_PROGRAMS
        return self.limits.max_agents or (_MAX_AGENTS_IN_BATCHES if self.lane == "batch" else _MAX_AGENTS)

    @property
    def max_turns(self) -> int:
        return self.limits.max_turns or (_MAX_TURNS if self.runtime is None else _MAX_PROGRAM_TURNS)

    def _apply_runtime(self) -> None:
        runtime = self.runtime
        if runtime is None:
            return
        if isinstance(runtime, type) or not callable(getattr(runtime, "open", None)):
            raise SpecError(f"runtime must be a runtime, such as OpenCodeRuntime(...); got {runtime!r}.")
        if self.tools:
            raise SpecError(
                "tools= are for agents without a runtime: a program brings its own. Pass either runtime= or tools=."
            )
        if self.context.oversized == "chunk":
            raise SpecError("oversized='chunk' is for agents without a runtime: a program reads its files itself.")
        for name in ("backend", "model"):
            if getattr(runtime, name) is not None:
                object.__setattr__(self, name, getattr(runtime, name))

    def _apply_backend_settings(self, settings: Sequence[BackendSettings], endpoints: int) -> None:
        """Applies the model and the limits that the backend has of its own."""
        names = {each.model for each in settings if each.model is not None}
        if self.evaluation.models is None and (others := sorted(names - {self.model})):
            if self.model is not None or len(others) > 1:
                shown = ", ".join(map(repr, others if self.model is None else [self.model, *others]))
                raise SpecError(f"The backend and the run name different models ({shown}). Name one model.")
            object.__setattr__(self, "model", others[0])
        limits = {name: joint_limit(name, settings, endpoints) for name in ("max_inflight", "rpm", "tpm")}
        own = {name: limit for name, limit in limits.items() if limit is not None}
        if own and isinstance(self.limits, Limits):
            lower: dict[str, Any]
            lower = {name: min(limit, getattr(self.limits, name) or limit) for name, limit in own.items()}
            object.__setattr__(self, "limits", replace(self.limits, **lower))

    def _check_batch_lane(self) -> None:
        if self.runtime is not None:
            raise SpecError("lane='batch' is for agents without a runtime: a program cannot wait hours for each reply.")
        if self.distribution.cluster is not None or self.distribution.store is not None:
            raise SpecError(
                "lane='batch' runs in one process, which does little but wait: leave out store= and cluster=."
            )

    @classmethod
    def of(cls, **options: Unpack[SpecOptions]) -> Self:
        """Builds a spec from flat options; a group may also be given whole, as in `limits=Limits(...)`."""
        own = group_options(options, _OWN_FIELDS, OPTION_NAMES)
        for required in ("task", "inputs"):
            if required not in own:
                raise SpecError(f"{required}= is missing.")
        return cls(**own)

    if not TYPE_CHECKING:  # a type checker would believe that a spec has every attribute

        def __getattr__(self, name: str) -> Any:
            if name in FLAT:
                group, member = FLAT[name]
                return getattr(getattr(self, group), member)
            raise AttributeError(f"A BatchSpec has no {name!r}.{explain_unknown_name('option', name, OPTION_NAMES)}")


_OWN_FIELDS = {f.name for f in fields(BatchSpec)}
OPTION_NAMES = (*sorted(_OWN_FIELDS - set(OPTION_GROUPS)), *FLAT)


def _accept_flat_options(init: Callable[..., None]) -> Callable[..., None]:
    """Makes `BatchSpec(...)` accept flat options, as batch-agent 0.2 did."""

    @wraps(init)
    def __init__(self: BatchSpec, *args: Any, **options: Any) -> None:
        if not options.keys() <= _OWN_FIELDS:
            options = group_options(options, _OWN_FIELDS, OPTION_NAMES)
        init(self, *args, **options)

    return __init__


if not TYPE_CHECKING:
    BatchSpec.__init__ = _accept_flat_options(BatchSpec.__init__)


_MAX_SEED = 2**63 - 1


def check_sampling(sampling: Sampling) -> None:
    """Raises SpecError."""
    if sampling.max_tokens is not None:
        at_least("max_tokens", sampling.max_tokens, 1)
    if sampling.temperature is not None and not (is_number(sampling.temperature) and sampling.temperature >= 0):
        raise SpecError(f"temperature must be a number >= 0; got {sampling.temperature!r}.")
    if sampling.top_p is not None and not (is_number(sampling.top_p) and 0 < sampling.top_p <= 1):
        raise SpecError(f"top_p must be a number > 0 and <= 1; got {sampling.top_p!r}.")
    if sampling.seed is not None and (not is_whole(sampling.seed) or abs(sampling.seed) > _MAX_SEED):
        raise SpecError(f"seed must be an integer of at most 64 bits; got {sampling.seed!r}.")
    if not isinstance(sampling.stop, list | tuple) or not all(isinstance(text, str) for text in sampling.stop):
        raise SpecError(f"stop must be a list of strings; got {sampling.stop!r}: write stop=[...].")
    for text in sampling.stop:
        valid_unicode("stop", text)
