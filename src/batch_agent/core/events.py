"""What can be observed of a run. Emitted on the side; a sink can read a run, never change it."""

from .errors import ErrorKind
from .fast_dataclass import dataclass
from .requests import NO_USAGE, FinishReason, Usage
from .results import AgentResult, CallRecord, ToolUse
from .run_reports import PrefixReport, Scheduling


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that a person who waits wants to know, such as that a model is being loaded."""

    text: str


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The backend is open, and the first agents are about to begin."""

    backend: str
    model: str
    inflight: int
    total: int | None
    """None when the inputs are read lazily and their number is not known."""
    seen: tuple[str, ...] = ()
    """What is active on the server, in words."""
    prices: tuple[float, float, float] | None = None
    """Dollars for a million tokens of input, of cached input and of output; None where nobody knows them."""

    def cost(self, usage: Usage) -> float | None:
        """In dollars; None where nobody knows."""
        if self.prices is None:
            return None
        fresh, cached, output = self.prices
        return ((usage.input - usage.cached) * fresh + usage.cached * cached + usage.output * output) / 1e6


@dataclass(frozen=True, slots=True)
class AgentStarted:
    """An agent has its first slot."""

    key: str
    index: int


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """A request is sent: the agent has a slot from here on. Parts of a long input have keys that begin with that of
    their agent and a dot."""

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


@dataclass(frozen=True, slots=True)
class LoadSampled:
    """How full a backend's two limits are, about once a second."""

    backend: str
    inflight: int
    """Slots in use."""
    limit: int
    waiting: int = 0
    """Agents that wait for a slot."""
    residents: int | None = None
    """Agents with a place in the KV cache; None where places are not counted."""
    kv_held: int | None = None
    """Tokens that they hold, as the ledger counts them."""
    kv_limit: int | None = None
    kv_usage: float | None = None
    """What the server says: the share of its cache that running requests hold."""
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
    """So many requests may be in flight from here on, and why."""

    inflight: int
    reason: str


@dataclass(frozen=True, slots=True)
class Paused:
    """Nothing is sent for so long: the server asked for it, or nobody answers there."""

    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """A pause is over."""


@dataclass(frozen=True, slots=True)
class ToolsUsed:
    """At the end of a run with tools."""

    tools: tuple[ToolUse, ...]
    summaries: Usage = NO_USAGE
    """Tokens of requests that are in no agent's usage: summaries of long results, and the trial of tools."""


@dataclass(frozen=True, slots=True)
class BudgetReported:
    """At the end of a run with a budget: what it and its earlier parts have used of it."""

    tokens: int
    usd: float


@dataclass(frozen=True, slots=True)
class SchedulingReported:
    """At the end of a run: how it was scheduled."""

    scheduling: Scheduling


@dataclass(frozen=True, slots=True)
class PrefixReported:
    """What the prompts of all agents share: before the run as expected, after it as seen."""

    prefix: PrefixReport


@dataclass(frozen=True, slots=True)
class AgentReassigned:
    """Another worker goes on with this agent: this one was thought to be gone."""

    key: str


@dataclass(frozen=True, slots=True)
class AgentFinished:
    """An agent has its answer, or has failed; its facts are written."""

    result: AgentResult
    resumed: bool
    """True when the answer was already in the checkpoint."""


@dataclass(frozen=True, slots=True)
class FlowStarted:
    """Before the first stage of a flow: the names of all, in order."""

    stages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ItemQueued:
    """Another item has come to a stage, and will be asked there."""


@dataclass(frozen=True, slots=True)
class CallbackFailed:
    """A function of the user's raised: `on_result`, or in a flow a filter, an expansion, a key of groups, or what is
    shown of an item."""

    where: str
    item: str
    """The place of the item or result, as people read it."""
    message: str


@dataclass(frozen=True, slots=True)
class StageEvent:
    """What happened in one stage of a flow."""

    stage: str
    event: "Event"


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """What happened at another worker, in a run that several share. In a flow, it is inside of an `StageEvent`."""

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
    | AgentReassigned
    | AgentFinished
    | FlowStarted
    | ItemQueued
    | CallbackFailed
    | StageEvent
    | WorkerEvent
)
