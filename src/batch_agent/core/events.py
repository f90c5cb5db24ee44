"""Events of a run. A sink observes a run and cannot change it."""

from dataclasses import field
from typing import Literal

from .errors import ErrorKind
from .fast_dataclass import dataclass
from .messages import ToolResult
from .options.price import Price, PriceNumbers, price_from_numbers
from .requests import NO_USAGE, FinishReason, Reply, Usage
from .results import AgentResult, CallRecord, ToolUse
from .run_reports import PrefixReport, RunDescription, Scheduling


@dataclass(frozen=True, slots=True)
class Notice:
    """Message for the user, such as that a model is being loaded."""

    text: str


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The backend is open, and the first agents are about to begin."""

    backend: str
    model: str
    inflight: int
    total: int | None
    """None if the inputs are read lazily and their number is unknown."""
    seen: tuple[str, ...] = ()
    """Active features of the server, as text for the user."""
    prices: PriceNumbers | None = None
    """Dollars per million tokens of input, cached input and output, and what else `PriceNumbers` has; None if
    unknown."""
    description: RunDescription | None = None
    """Task, system prompt, tools, schema and options; None for a run that this process only watches."""

    @property
    def price(self) -> Price | None:
        """None if the prices are unknown."""
        return None if self.prices is None else price_from_numbers(self.prices)

    def cost(self, usage: Usage) -> float | None:
        """Cost in dollars; None if the prices are unknown."""
        price = self.price
        return None if price is None else price.of(usage)


@dataclass(frozen=True, slots=True)
class AgentStarted:
    """An agent has its first slot. In a run with `key=`, the key of an agent is `ID@HASH` in events."""

    key: str
    index: int


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """A request is sent: the agent has a slot from here on. Keys of chunks of a long input begin with the key of their
    agent and a dot."""

    key: str
    turn: int


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The model answered."""

    key: str
    turn: int
    usage: Usage
    finish: FinishReason
    queued: float
    """Seconds that the turn waited for a slot."""
    seconds: float
    ttft: float | None
    """Seconds to the first token; None when the turn was not streamed."""
    attempts: int
    reply: Reply | None = field(default=None, compare=False, repr=False)
    """Only in the process that sent the request: not in logs, and not in events of other workers."""


@dataclass(frozen=True, slots=True)
class CallsStarted:
    """The agent waits for these tools, without a slot."""

    key: str
    turn: int
    tools: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CallsEnded:
    """All tool calls of a turn have their results."""

    key: str
    turn: int
    calls: tuple[CallRecord, ...]
    seconds: float
    results: tuple[ToolResult, ...] = field(default=(), compare=False, repr=False)
    """In the order of `calls`, only in the process that made them: as `TurnEnded.reply`."""


@dataclass(frozen=True, slots=True)
class LoadSampled:
    """Use of the two limits of a backend, about once a second."""

    backend: str
    inflight: int
    """Slots in use."""
    limit: int
    waiting: int = 0
    """Agents that wait for a slot."""
    residents: int | None = None
    """Agents resident in the KV cache; None if residency is not tracked."""
    kv_held: int | None = None
    """Tokens that residents hold, by the ledger."""
    kv_limit: int | None = None
    kv_usage: float | None = None
    """Share of its KV cache that running requests hold, as the server reports it."""
    server_running: int | None = None
    server_waiting: int | None = None


@dataclass(frozen=True, slots=True)
class RequestRetried:
    """A request failed and is sent again. The agent waits meanwhile, without a slot."""

    key: str
    kind: ErrorKind
    message: str
    delay: float


@dataclass(frozen=True, slots=True)
class LimitChanged:
    """New limit of requests in flight, and its reason."""

    inflight: int
    reason: str


@dataclass(frozen=True, slots=True)
class Paused:
    """No requests are sent for so long: the server demanded it, or it is unavailable."""

    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """End of a pause."""


@dataclass(frozen=True, slots=True)
class ToolsUsed:
    """Statistics of the tools, at the end of a run."""

    tools: tuple[ToolUse, ...]
    summaries: Usage = NO_USAGE
    """Usage of requests that belong to no agent: summaries of long results, and the test of tool calls."""


@dataclass(frozen=True, slots=True)
class BudgetReported:
    """Use of the budget at the end of a run, including the runs that it resumed."""

    tokens: int
    cost: float


@dataclass(frozen=True, slots=True)
class SchedulingReported:
    """Scheduling report, at the end of a run."""

    scheduling: Scheduling


@dataclass(frozen=True, slots=True)
class PrefixReported:
    """Prefix report: expected before the run, measured after it."""

    prefix: PrefixReport


@dataclass(frozen=True, slots=True)
class Steered:
    """The user changed the run while it was running (`batch-agent ctl`)."""

    name: str
    """What was changed: `max_inflight`, `max_usd`, `deadline`, `pause`, `inputs`, or an agent."""
    before: str
    after: str
    agents: int = 0
    """Agents that the run has more, because inputs were added."""

    def __str__(self) -> str:
        return f"{self.name}: {self.before} -> {self.after}"


EndpointState = Literal["joined", "draining", "left"]


@dataclass(frozen=True, slots=True)
class EndpointChanged:
    """An endpoint of the backend joined the run, takes no new requests (`draining`), or has left it."""

    endpoint: str
    state: EndpointState
    serving: int
    """Endpoints that take requests now."""
    in_flight: int = 0
    """Requests that a draining endpoint still answers."""
    kv_tokens: int | None = None
    """Capacity of the KV cache of an endpoint that joined; None if it is unknown."""

    def __str__(self) -> str:
        count = f"{self.serving:,} endpoint{'s' if self.serving != 1 else ''}"
        match self.state:
            case "joined":
                return f"Endpoint {self.endpoint} joined ({count})."
            case "draining":
                return f"Endpoint {self.endpoint} is draining: {self.in_flight:,} in flight, no new requests ({count})."
            case "left":
                return f"Endpoint {self.endpoint} left ({count})."


@dataclass(frozen=True, slots=True)
class AgentReassigned:
    """Another worker has taken over this agent, because this worker seemed dead."""

    key: str


@dataclass(frozen=True, slots=True)
class AgentFinished:
    """An agent has its answer or has failed, and its facts are stored."""

    result: AgentResult
    resumed: bool
    """True if the result was already in the checkpoint."""


@dataclass(frozen=True, slots=True)
class FlowStarted:
    """Start of a flow, with the names of its stages in order."""

    stages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ItemQueued:
    """One more item waits for a stage."""


@dataclass(frozen=True, slots=True)
class CallbackFailed:
    """A callback of the user raised: `on_result`, or in a flow `filter`, `expand`, `group_by` or `shown`."""

    where: str
    item: str
    """Position of the item or result, as text for the user."""
    message: str


@dataclass(frozen=True, slots=True)
class StageEvent:
    """Event of one stage of a flow."""

    stage: str
    event: "Event"


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """Event of another worker of a distributed run. In a flow, a `StageEvent` wraps it."""

    worker: str
    event: "Event"


Event = (
    Notice
    | RunStarted
    | AgentStarted
    | TurnStarted
    | TurnEnded
    | CallsStarted
    | CallsEnded
    | LoadSampled
    | RequestRetried
    | LimitChanged
    | Paused
    | Resumed
    | ToolsUsed
    | BudgetReported
    | SchedulingReported
    | PrefixReported
    | Steered
    | EndpointChanged
    | AgentReassigned
    | AgentFinished
    | FlowStarted
    | ItemQueued
    | CallbackFailed
    | StageEvent
    | WorkerEvent
)


def unwrap(event: Event) -> tuple[str, str, Event]:
    """The stage and the worker of an event, each empty if there is none, and the event that they wrap."""
    stage = worker = ""
    if isinstance(event, StageEvent):
        stage, event = event.stage, event.event
    if isinstance(event, WorkerEvent):
        worker, event = event.worker, event.event
    return stage, worker, event
