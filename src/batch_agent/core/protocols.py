"""Seams of the engine: backend, tools, journal, store, work source, executor and event sinks, with their data."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import field
from typing import Any, Literal, Protocol, runtime_checkable

from .agent_config import Job
from .coordinator import Completion
from .events import EndpointChanged, Event
from .facts import Fact
from .fast_dataclass import dataclass
from .images import MAX_IMAGE_TOKENS
from .messages import ToolCall, ToolResult, ToolSpec
from .options.price import PriceNumbers
from .requests import ContextHint, Delta, EncodedRequest, Exchange, Lane, Request, Usage
from .results import AgentError, AgentResult, CallRecord


@dataclass(frozen=True, slots=True)
class Traits:
    """Capabilities of a backend, detected or known."""

    name: str
    model: str
    native_tools: bool
    json_schema: bool
    """It constrains answers to a JSON schema."""
    json_schema_with_tools: bool
    """It does so in requests with tools too, without preventing tool calls."""
    inflight: int
    """Initial limit of requests in flight, if the user sets none."""
    fixed_inflight: bool = False
    """More than `inflight` never helps: the server has so many slots."""
    context_tokens: int | None = None
    kv_tokens: int | None = None
    """Capacity of its KV cache, slower tiers included; None if it is unknown or irrelevant."""
    kv_running_tokens: int | None = None
    """Capacity of the tier that running requests use: what is in a slower tier has to be loaded back first."""
    strict_schema: bool = False
    """It takes only schemas that have a strict form (core/schema.py)."""
    has_agent_sessions: bool = False
    """It keeps a session per agent, until `Backend.leave`."""
    reports_rate_limits: bool = False
    """Its responses say how many requests and tokens it accepts per minute, which `ReportsRateLimits` passes on."""
    takes_hints: bool = False
    """It manages its KV cache by the hints in requests (`Request.hint`), and those of `TakesHints`."""
    managed_cache: bool = False
    """A prefix is cached only after the first answer, so warming it before a burst pays."""
    lanes: tuple[Lane, ...] = ("standard",)
    """Lanes that requests may take."""
    token_ids: bool = False
    """Its replies have the ids of their tokens, if a request asks for them (`Request.tokens`)."""
    unsupported_sampling: tuple[str, ...] = ()
    """Sampling options that it does not support."""
    images: bool | None = None
    """Whether the model takes images; None: unknown."""
    max_image_bytes: int | None = None
    """Largest image that it takes, before it is encoded."""
    max_image_side: int | None = None
    """Most pixels of a side of an image that it takes."""
    image_tokens: int = MAX_IMAGE_TOKENS
    """Most tokens of one image."""
    detected: tuple[str, ...] = ()
    """Active features that were detected, as text for the user."""


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """Load report of a server. Counters count from its start."""

    running: int = 0
    """Requests in its batch."""
    waiting: int = 0
    """Requests in its queue."""
    kv_usage: float | None = None
    """Share of its KV cache that running requests hold, without what is only cached."""
    preemptions: int = 0
    computed: int = 0
    """Tokens written to its KV cache: prompts without their cache hits, and answers."""
    kv_host_tokens: int | None = None
    """Capacity of the tier of its KV cache in host memory; None if there is none, or its size is not known yet."""


class Backend(Protocol):
    """Inference server. Warming a prefix is a request with max_tokens=1."""

    @property
    def traits(self) -> Traits: ...

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[Delta]]:
        """Sends one turn. Raises BackendError only; leaving the context early aborts the request."""
        ...

    async def leave(self, agent: str) -> None:
        """Ends an agent: the server may drop what it keeps for it. Never raises, and returns soon."""
        ...

    async def aclose(self) -> None: ...


@runtime_checkable
class ReportsLoad(Protocol):
    """Backend whose server reports its load."""

    async def load(self) -> ServerLoad | None:
        """Load report, or None if there is none. Never raises BackendError, and returns soon."""
        ...


PaceKind = Literal["requests", "tokens", "input_tokens", "output_tokens"]
"""What a limit per minute counts. Some services count prompts and generated tokens apart."""


@dataclass(frozen=True, slots=True)
class ServiceLimit:
    """A limit per minute as a service reports it."""

    limit: int
    remaining: int | None = None
    """What may be sent now."""
    reset: float | None = None
    """Seconds until nothing of the limit is used."""


@runtime_checkable
class ReportsRateLimits(Protocol):
    """Backend whose responses may report limits per minute."""

    def observe_rate_limits(self, observer: Callable[[Mapping[PaceKind, ServiceLimit]], None]) -> Callable[[], None]:
        """Calls `observer` with the limits in each response that has some. Returns a function that ends this."""
        ...


@runtime_checkable
class CollectsRequests(Protocol):
    """Backend that collects the requests of many agents, and sends them together."""

    def observe_agents(self, on_their_way: Callable[[], int]) -> Callable[[], None]:
        """`on_their_way`: counts the agents that may send a request though no other one is answered: those that were
        admitted, and whoever admits further ones, less those that wait for a slot or for the budget. Requests that
        wait here are included. Returns a function to be called when the count may have changed."""
        ...

    def submitted(self, request: Request) -> "EarlierSubmission | None":
        """Whether the request was submitted before: it is not sent again, but its result awaited."""
        ...


@runtime_checkable
class TakesHints(Protocol):
    """Backend that can send a hint about an agent's context without a request to the model."""

    async def hint(self, hint: ContextHint) -> None:
        """Corrects the hint of the agent's last request, or does nothing if the server has no use for it. Never raises,
        and returns soon. The end of an agent is `Backend.leave`."""
        ...


@runtime_checkable
class HasEndpoints(Protocol):
    """Backend of several endpoints."""

    def unavailable(self) -> tuple[str, ...]:
        """Unavailable endpoints, each with its last error."""
        ...


@runtime_checkable
class AssignsEndpoints(Protocol):
    """Backend of several endpoints, each with a KV cache, that sends an agent's requests where it is resident.
    Endpoints are identified by their names."""

    on_routed: Callable[[str, str], None] | None
    """Called with the agent and the endpoint before each request is sent."""

    @property
    def kv_capacities(self) -> Mapping[str, int] | None:
        """Tokens that the KV cache of each endpoint holds; None if that is not known of all that are connected."""
        ...

    def assign(self, agent: str, endpoint: str) -> None:
        """The agent's requests go to this endpoint until they fail there or it is ejected."""
        ...

    def is_available(self, endpoint: str) -> bool:
        """Whether the endpoint takes requests: it is up, or may be probed, and is not draining."""
        ...

    def expected_wait(self, endpoint: str, requests: int) -> float:
        """Seconds until the endpoint would have answered so many requests, those in flight included. While its speed
        is unknown, only comparable with that of other endpoints."""
        ...


@runtime_checkable
class ChangesEndpoints(Protocol):
    """Backend whose endpoints may join and leave while it is open."""

    @property
    def traits(self) -> Traits:
        """Of the endpoints that take requests now."""
        ...

    def observe_endpoints(self, observer: Callable[[EndpointChanged], None]) -> Callable[[], None]:
        """Calls `observer` with each change from now on. Returns a function that ends this."""
        ...


@runtime_checkable
class CountsTokens(Protocol):
    """Backend whose server counts tokens."""

    async def count_tokens(self, text: str) -> int | None:
        """Tokens of the text, or None if the server does not say. Never raises BackendError, and returns soon."""
        ...


@runtime_checkable
class RendersPrompts(Protocol):
    """Backend whose server renders the prompt of a request without computing it."""

    async def render_prompt(self, request: Request) -> bytes | None:
        """Ids of the prompt, as the server renders its messages with all tools; None if the server does not say. Never
        raises BackendError."""
        ...


@runtime_checkable
class EncodesRequests(Protocol):
    """Backend that can show a request as it would send it."""

    def encode(self, request: Request) -> EncodedRequest:
        """Sends nothing."""
        ...


@dataclass(frozen=True, slots=True)
class CallHistory:
    """Calls of a turn that an earlier process began, as the checkpoint has them."""

    turn: int = 0
    settled: Mapping[str, ToolResult] = field(default_factory=dict)
    """Results by call id."""
    claimed: frozenset[str] = frozenset()
    """Ids of calls that may have been made."""
    inherited: tuple[ToolResult, ...] = ()
    """Calls that an earlier attempt of this agent made."""
    earlier: tuple[CallRecord, ...] = ()
    """The calls of this agent's earlier turns."""
    life: int = 0
    """Differs for each attempt that follows one which has changed something."""


class Journal(Protocol):
    """Journal of the calls of an agent that must not be made twice."""

    @property
    def is_durable(self) -> bool:
        """Whether a later process can resume from it."""
        ...

    async def identity(self) -> str:
        """As `Store.identity`."""
        ...

    async def claim(self, call: ToolCall) -> None:
        """Records the intent to make a call. Durable on return, also against a power cut: only then may it be made."""
        ...

    def withdraw(self, call: ToolCall) -> None:
        """Cancels a claim: the call was not made. Never raises."""
        ...

    def settle(self, result: ToolResult) -> None: ...


class ToolSession(Protocol):
    """Tools of one agent. Failures are results; the end of the agent cancels running calls."""

    def start(self, position: int, call: ToolCall) -> None:
        """Starts a call while the model is still generating, if the tool allows it; `results` returns its result."""
        ...

    async def abandon(self) -> None:
        """Cancels the started calls because their reply failed; they have ended on return."""
        ...

    async def results(self, calls: Sequence[ToolCall], past: CallHistory | None = None) -> tuple[ToolResult, ...]:
        """Runs the calls concurrently; one result per call, in order. Never raises for a tool's failure. `past`: what
        the checkpoint has of calls that change something."""
        ...

    def expected_readers(self, path: Sequence[str]) -> float:
        """Agents that are expected to have these references, in this order, at the beginning of their prompts."""
        ...


class ToolSet(Protocol):
    """Tools of a run."""

    @property
    def specs(self) -> tuple[ToolSpec, ...]: ...

    @property
    def may_start_early(self) -> bool:
        """Whether any tool may start before the model's reply is complete."""
        ...

    def session(self, agent: str, journal: Journal | None = None, job: Job | None = None) -> ToolSession:
        """Session of an agent. `job`: what tools may know of it."""
        ...

    def recall(self, facts: Sequence[Fact]) -> None:
        """Takes over the order of references from the facts of an agent that an earlier process began."""
        ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Account:
    """Upper bound of what a run has spent, with the requests in flight; None where it has no limit."""

    tokens: float | None
    usd: float | None


Prices = PriceNumbers
"""Dollars per million tokens: input, cached input, output."""


class Store(Protocol):
    """Store of facts. An agent can be restored from its facts alone."""

    @property
    def is_durable(self) -> bool:
        """Whether a later run can resume from it."""
        ...

    async def open(self) -> None:
        """Raises StoreError, also when another process is using it."""
        ...

    async def plan(self) -> Mapping[str, Any] | None:
        """Plan of the run that recorded these facts, as saved by `save_plan`; None for a new store."""
        ...

    async def save_plan(self, plan: Mapping[str, Any]) -> None: ...

    async def identity(self) -> str:
        """Random id of the run, the same after each resume. Empty in stores of versions without one."""
        ...

    async def facts(self, key: str) -> Sequence[Fact]:
        """Facts of an agent, oldest first; empty if it is unknown."""
        ...

    async def spent(self) -> Usage:
        """Usage of all replies together, including those of restarted agents."""
        ...

    async def account(self) -> Account | None:
        """Account as last saved by `save_account`; None if there is none."""
        ...

    async def save_account(self, account: Account) -> None:
        """Saves the account, durable on return. Raises StoreError."""
        ...

    def save_run(self, inputs: Sequence[Any], prices: Prices | None) -> None:
        """Saves the inputs of the run by index and the prices of its model, for readers of the store, and clears what
        `reject` recorded. Resuming does not use them."""
        ...

    def reject(self, index: int, value: Any, error: AgentError) -> None:
        """Records an input that failed before its agent started, for readers of the store."""
        ...

    def record(self, key: str, fact: Fact) -> None:
        """Records a fact; it may not be durable yet on return."""
        ...

    def restart(self, key: str, facts: Sequence[Fact]) -> None:
        """Replaces the facts of an agent atomically: it starts again from its task."""
        ...

    async def settle(self, key: str | None = None, *, sync: bool = False) -> None:
        """Makes all facts durable that were recorded before. Raises StoreError; with the `key` of an agent, LeaseLost
        if another worker has it now. `sync`: at once and durable against a power cut too, which costs an fsync."""
        ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SubmittedLine:
    """A request in a submission."""

    key: str
    """Identifies the request: a hash of its agent, its turn and its body."""
    input: int = 0
    """Tokens that the budget has reserved for its prompt; 0 without a budget."""
    output: int = 0
    usd: float = 0.0


@dataclass(frozen=True, slots=True)
class Submission:
    """Requests that are submitted as one batch, recorded before the batch is created."""

    wave: str
    """Random id, by which the batch is found again."""
    at: float
    """When it was about to be created, in seconds since the epoch."""
    lines: tuple[SubmittedLine, ...]
    file: str = ""
    """The provider's id of the file with the requests; empty if there is none, or not yet."""
    batch: str = ""
    """The provider's id of the batch; empty: it may or may not have been created."""
    has_ended: bool = False
    """The provider has reported its end. Results of it may have been counted against the budget."""


@dataclass(frozen=True, slots=True)
class EarlierSubmission:
    """A request that was submitted by an earlier process, or whose agent did not wait for the result. Its reservation
    counts as spent."""

    line: SubmittedLine
    had_ended: bool
    """The earlier process may have counted what it was billed instead."""


@runtime_checkable
class KeepsSubmissions(Protocol):
    """Store that records what is submitted in batches."""

    async def submissions(self) -> Sequence[Submission]:
        """Submissions with lines that no agent has taken, oldest first, and only with those lines."""
        ...

    async def save_submission(self, submission: Submission) -> None:
        """Records a submission, or what has become known of it, after all facts that were recorded before. Durable on
        return, also against a power cut. Raises StoreError."""
        ...

    def take_lines(self, wave: str, keys: Sequence[str]) -> None:
        """Records that agents have received these lines. May not be durable on return."""
        ...


@dataclass(frozen=True, slots=True)
class Control:
    """What the user changed of a run while it was running."""

    name: str
    """`max_usd`, `deadline`, `cancel` or `add`."""
    value: Any
    """JSON data: the new value, the key of an agent, or a list of inputs."""
    given: Any = None
    """The value with which the run was started, of an option."""


@runtime_checkable
class KeepsControls(Protocol):
    """Store that records what the user changes of a live run."""

    async def controls(self) -> Sequence[Control]:
        """What was changed, oldest first."""
        ...

    async def save_controls(self, controls: Sequence[Control], first_index: int | None = None) -> None:
        """Records changes. Durable on return. `first_index`: of the inputs that were added, for readers of the store;
        None if it is unknown. Raises StoreError."""
        ...


class WorkSource(Protocol):
    """Source of jobs, read only when the next one can be run."""

    @property
    def total(self) -> int | None: ...

    @property
    def is_bounded(self) -> bool:
        """Whether it ends by itself once there is no work left."""
        ...

    async def take(self) -> Job | None: ...

    def release(self, job: Job) -> None:
        """Reports that a job that was taken is no longer run here."""
        ...


class Slot(Protocol):
    """Permit for one request in flight."""

    def settle(self, usage: Usage) -> None:
        """Reports the usage of the request, if it was answered."""
        ...

    def release(self) -> None: ...


class Executor(Protocol):
    """Executor of agents, each to its end."""

    def from_checkpoint(self, job: Job, facts: Sequence[Fact]) -> AgentResult | None:
        """Result of a job that needs no more work, or None."""
        ...

    async def from_remote(self, job: Job, facts: Sequence[Fact], completion: Completion) -> AgentResult | None:
        """Result of an agent that ended on another worker, from its facts and its completion. None if facts are
        missing."""
        ...

    def run(self, job: Job, facts: Sequence[Fact], slot: Slot) -> Awaitable[AgentResult]:
        """Runs the agent from `facts` on, and owns the slot of its next turn. Raises RunStopped when no agent can
        continue."""
        ...


class EventSink(Protocol):
    """Sink for events. It must not block and must not raise."""

    def emit(self, event: Event) -> None: ...


@runtime_checkable
class SlowSink(Protocol):
    """Sink that may block: its methods are called in order from one thread. One that is used for several runs is closed
    after each."""

    def take(self, at: float, event: Event) -> None:
        """`at`: when it happened, in seconds since the epoch."""
        ...

    def flush(self) -> None:
        """Called after each batch of events."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class ExchangeSink(Protocol):
    """Slow sink that may also get the requests of a run and the responses, in the thread of its other methods."""

    @property
    def wants_exchanges(self) -> bool:
        """If False, requests are not recorded."""
        ...

    def take_exchange(self, exchange: Exchange) -> None:
        """Called before the events that follow from the response."""
        ...


EventSinks = EventSink | SlowSink | Sequence[EventSink | SlowSink] | None
