"""What can be observed of a run. Emitted on the side; a sink can read a run, never change it."""

from dataclasses import dataclass

from .errors import ErrorKind
from .requests import NO_USAGE, Usage
from .results import AgentResult, ToolUse
from .scheduling import Scheduling
from .sharing import PrefixReport


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that a person who waits wants to know, such as that a model is being loaded."""

    text: str


@dataclass(frozen=True, slots=True)
class RunStarted:
    backend: str
    model: str
    inflight: int
    total: int | None
    """None when the inputs are read lazily and their number is not known."""
    seen: tuple[str, ...] = ()
    """What is active on the server, in words."""


@dataclass(frozen=True, slots=True)
class AgentStarted:
    key: str
    index: int


@dataclass(frozen=True, slots=True)
class RequestRetried:
    key: str
    kind: ErrorKind
    message: str
    delay: float


@dataclass(frozen=True, slots=True)
class LimitChanged:
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
    """Tokens that went into summaries of long results; they are in no agent's usage."""


@dataclass(frozen=True, slots=True)
class Spent:
    """At the end of a run with a budget: what it and its earlier parts have used of it."""

    tokens: int
    usd: float


@dataclass(frozen=True, slots=True)
class Scheduled:
    """At the end of a run: how it was scheduled."""

    scheduling: Scheduling


@dataclass(frozen=True, slots=True)
class Shared:
    """What the prompts of all agents share: before the run as expected, after it as seen."""

    prefix: PrefixReport


@dataclass(frozen=True, slots=True)
class AgentFinished:
    result: AgentResult
    resumed: bool
    """True when the answer was already in the checkpoint."""


@dataclass(frozen=True, slots=True)
class FlowStarted:
    """Before the first stage of a flow: the names of all, in order."""

    stages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Queued:
    """Another item has come to a stage, and will be asked there."""


@dataclass(frozen=True, slots=True)
class InStage:
    """What happened in one stage of a flow."""

    stage: str
    event: "Event"


Event = (
    Notice
    | RunStarted
    | AgentStarted
    | RequestRetried
    | LimitChanged
    | Paused
    | Resumed
    | ToolsUsed
    | Spent
    | Scheduled
    | Shared
    | AgentFinished
    | FlowStarted
    | Queued
    | InStage
)
