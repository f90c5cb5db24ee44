"""Types of the options of a run, for type checkers and editors.

Written by `python -m scripts.option_types` from the dataclasses of core/options, requests.py and spec.py: do not
edit."""

from collections.abc import Callable, Collection, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

from ..program_runtime import Runtime
from ..protocols.backend import Backend
from ..requests import Sampling
from ..results import OnResult
from . import ContextLimits, Distributed, Limits, Prefix, Retry, Rows, SpendingLimits, Timeouts, ToolCaching
from .backend_settings import BackendSettings
from .evaluation import Evaluation


class AgentOptions(TypedDict, total=False):
    """Options that say how agents work."""

    tools: Collection[Any]
    """Functions, `Tool` objects, MCP servers or LangChain tools that agents may call: docs/tools.md."""
    model: str | None
    """Name of the model. None: the only one that the server has."""
    runtime: Runtime | None
    """Programs that do the work, such as OpenCodeRuntime(...): docs/coding-agents.md. Its backend and model override
    those of the run."""
    plan_changed: Literal["stop", "rerun"]
    """What to do with a checkpoint that was made with another task, model, schema, tools or sampling: raise
    PlanMismatch, or run everything again and keep the old answers."""
    tokens: bool
    """Keep the token ids and log probabilities of each turn in the checkpoint, as the engine has them, for trainers.
    Needs vLLM or SGLang, and checkpoint_dir: docs/rollouts.md."""
    limit: int | None
    """Use only the first inputs, up to this number."""
    sample: int | None
    """Use a random sample of this many inputs, in input order. A larger sample contains every smaller one."""
    sample_seed: int
    """Another seed gives another sample; the same seed always gives the same one."""
    where: str | Callable[[Any], Any] | None
    """Use only matching inputs: a condition on fields such as "stars <= 2 and lang = 'en'", or a function."""
    input_format: Literal["jsonl", "json", "csv", "tsv", "parquet", "lines"] | None
    """Format of files, downloads and standard input. None: by the suffix; standard input is JSON lines."""
    encoding: str | None
    """Encoding of input files that are not UTF-8, such as "cp1252". None: they are refused, unless a byte order mark
    names it."""
    key: str | None
    """Field that identifies an input: its value is the key of the result, and must be unique."""
    images: Sequence[str]
    """Fields of the task whose texts are paths or URLs of images. Other values are known to be images: `Image(...)`,
    images of Pillow, and bytes."""
    rows: Rows
    """The options of `Rows` as a group, instead of one by one."""
    max_inflight: int | None
    """Requests in flight. None: found by the engine during the run."""
    max_agents: int | None
    """Concurrent agents, including those that wait for tools. None: 10,000; 20 where each is a program."""
    max_turns: int | None
    """Requests to the model that an agent may make. None: 10; 50 where it is a program."""
    priority: int
    """Priority relative to other clients of the server: higher goes first, if the server supports priorities."""
    backpressure_ceiling: int | None
    """Requests that may be queued at a server that reports its queue. None: a few."""
    rpm: int | None
    """Requests per minute that are sent to the backend, by all workers together. None: as many as it reports that it
    accepts, or as it answers."""
    tpm: int | None
    """Tokens per minute of the requests to the backend, input and output, by all workers together. None: as for rpm."""
    calibrate_backend: bool
    """Start the search for the number of requests in flight low, for an unknown server."""
    limits: Limits
    """The options of `Limits` as a group, instead of one by one."""
    timeout_per_agent: float | None
    """Seconds for an agent, from its first turn on. By default 4 hours in lane flex, unlimited in batch and auto."""
    timeout_per_turn: float | None
    """Seconds for a request to the model. By default 900 in lane flex, and unlimited in lane batch."""
    timeout_per_tool: float | None
    """Seconds for a tool call."""
    timeouts: Timeouts
    """The options of `Timeouts` as a group, instead of one by one."""
    max_retries: int
    """Retries of a failed request, and repairs of an answer that does not fit the schema."""
    backoff: float
    """Seconds before the first retry; doubles each time, with jitter."""
    backoff_max: float
    """Longest wait before a retry, in seconds."""
    retry_failed: bool
    """Start agents again that failed permanently in an earlier run with the same checkpoint."""
    retry: Retry
    """The options of `Retry` as a group, instead of one by one."""
    max_tool_tokens: int
    """A longer tool result is truncated, with a marker (a token is counted as 4 characters)."""
    streaming: bool
    """Stream every turn, so that the time to the first token is measured. Costs more client CPU."""
    streaming_tool_dispatch: bool
    """Start a tool as soon as its call is complete in the stream; only tools of effect pure or read."""
    context_tokens: int | None
    """Context window of the model. None: the server's; if unknown, nothing is checked or compacted."""
    oversized: Literal["refuse", "chunk"]
    """An input that does not fit the window fails before it is sent, or is split, and the answers to its parts are
    merged."""
    compact_at: float | None
    """Share of the window beyond which old tool results are removed from a conversation. None: never."""
    compact_with: Literal["elide", "summarize"]
    """What replaces removed tool results: a line that says so, or a summary by the model."""
    compact_model: str | None
    """Model that writes the summaries, if not the model of the run."""
    context: ContextLimits
    """The options of `ContextLimits` as a group, instead of one by one."""
    system_prompt: str | None
    """First message of each conversation, the same for all agents."""
    tool_mode: Literal["auto", "native", "action"]
    """native: the server's own tool calls. action: one JSON object per turn, for servers and models without them."""
    strip_preamble: bool
    """Remove session headers of agent CLIs from the head of the system prompt: they defeat prefix caches."""
    cache_salt: str | None
    """Share the server's prefix cache only with runs of the same salt, if the server supports salts."""
    warm_prefix: bool | None
    """Send the shared prefix ahead of the first agents. None: where it pays."""
    hoist: bool
    """Move a long value that is the same in all inputs into the shared part of the prompt."""
    reorder: bool
    """Process inputs that begin alike one after the other. Results stay in input order."""
    strict_prefix: bool
    """Reject a run for which lint finds something that prevents sharing."""
    shared_results: Literal["inline", "first", "auto"]
    """Where the results of read and pure tools stand: behind their call, before what is the agent's own, where a result
    that several agents read is computed once, or wherever less has to be computed."""
    kvflow: bool
    """Send keep-warm requests for agents that wait for tools before the server evicts their contexts, if the server has
    capacity to spare and reports enough to know when."""
    prefix: Prefix
    """The options of `Prefix` as a group, instead of one by one."""
    tool_cache_mb: int
    """Memory for tool results that agents share, in MiB."""
    tool_cache_dir: str | PathLike[str] | None
    """Directory that keeps the results of pure tools for later runs."""
    predictive_prewarm: bool
    """Execute in advance the calls of pure tools that earlier runs of the same task made. Needs tool_cache_dir."""
    tool_caching: ToolCaching
    """The options of `ToolCaching` as a group, instead of one by one."""
    max_total_tokens: int | None
    """Tokens that all agents may use, input and output. A request that might take more than is left is not sent."""
    max_usd: float | None
    """Dollars that all agents may spend, by `prices`."""
    deadline: float | None
    """Seconds for the run; agents in progress then fail."""
    prices: Mapping[str, Sequence[float] | Mapping[str, Any]]
    """By model: dollars per million tokens of input, cached input and output, or a dict that also has the prices of
    cache writes and long prompts. None given: a dated table."""
    spending: SpendingLimits
    """The options of `SpendingLimits` as a group, instead of one by one."""
    cluster: str | None
    """Agents run on a Ray cluster: "ray" for the one that this process belongs to, or a local one; "ray://host:10001"
    for one elsewhere."""
    workers: int | None
    """Processes of the cluster that run agents. None: one for each node."""
    store: str | None
    """Progress is kept on this Redis server ("redis://host:6379/0"), where other processes can join the run: the same
    program started again, on any machine, or `batch-agent worker`."""
    run_id: str | None
    """Name of the run in the store. None: made from the task."""
    lease: float
    """Seconds without a heartbeat after which a worker is considered lost and other workers continue its agents."""
    distribution: Distributed
    """The options of `Distributed` as a group, instead of one by one."""
    temperature: float | None
    """Sampling temperature, at least 0."""
    top_p: float | None
    """Nucleus sampling: above 0, up to 1."""
    seed: int | None
    """Seed of the server's sampler. An input that is repeated has a seed of its own for each repetition, derived from
    this one."""
    max_tokens: int | None
    """Limit of the tokens that the model generates in a turn."""
    stop: list[str] | tuple[str, ...]
    """Strings that end a turn when the model generates one of them."""
    extra: Mapping[str, Any]
    """Further fields of the request, sent unchanged."""
    sampling: Sampling
    """The options of `Sampling` as a group, instead of one by one."""
    samples: int
    """Answers for each input. They run one after the other, so that they share their whole prompt; with `seed`, each
    has a seed of its own."""
    models: Sequence[str] | Mapping[str, str | BackendSettings] | None
    """Models that answer every input, to compare them: names on the backend, or a dict of names and their backends."""
    score: Any
    """What an answer is worth: a scorer such as exact("label"), its name such as "exact:label", a function of the
    answer and the input, or a list of these: docs/evaluation.md."""
    evaluation: Evaluation
    """The options of `Evaluation` as a group, instead of one by one."""


class CommonOptions(AgentOptions, total=False):
    """Options that every run, and every stage of a flow, takes."""

    backend: str | BackendSettings | Sequence[str | BackendSettings] | Backend
    """A URL, or Backend(url, api_key=...) with a key, headers or limits of its own; several, of endpoints that serve
    the same model, or what lists these: hostfile://PATH, dns://NAME:PORT, command:PROGRAM; or a backend that the caller
    has opened and will close."""
    fallback: Sequence[Any]
    """Fallbacks for agents that the backend cannot serve, because it is out or refuses: names of models on the same
    backend, other backends, or NAME=URL for a model of another backend, in this order. See docs/backends.md."""
    lane: Literal["standard", "flex", "batch", "auto"]
    """flex: ordinary requests at half the price, which may wait for capacity. batch: requests in files that the
    provider works off within hours, at half the price. auto: the cheapest lane that the deadline leaves time for.
    docs/lanes.md says which backends have which."""
    checkpoint_dir: str | PathLike[str] | None
    """Directory that records every turn. A run with the same directory continues where the last one stopped. As an
    option of a run or a flow also in an object store: docs/data.md."""
    on_result: OnResult | None
    """Function that is called with each result as it arrives, sync or async."""
    out: str | PathLike[str] | None
    """A .jsonl, .csv or .parquet file, to which each result is written before it is handed over; or a folder in an
    object store, such as s3://bucket/out/, which gets parts and a manifest."""
    log_requests: str | PathLike[str] | None
    """A .jsonl file, to which each request to the model and its raw response are appended, without secrets."""
