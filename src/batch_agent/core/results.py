"""What a caller gets back."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import ErrorKind
from .messages import Message, ToolSource
from .quick import quick
from .requests import NO_USAGE, FinishReason, Usage
from .scheduling import Scheduling
from .sharing import PrefixReport

if TYPE_CHECKING:
    from .flow import StageReport


@dataclass(frozen=True, slots=True)
class AgentError:
    """Why an agent has no answer. `retryable`: running it again, unchanged, may work."""

    kind: ErrorKind
    message: str
    retryable: bool = False

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@quick
@dataclass(frozen=True, slots=True)
class CallRecord:
    """One tool call of an agent, as it went."""

    name: str
    arguments: str
    ok: bool
    seconds: float
    source: ToolSource = "executed"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What one tool of a run was asked, did and saved. Seconds are those of executions."""

    name: str
    requested: int = 0
    executed: int = 0
    shared: int = 0
    """Calls that were answered by another call's execution while it ran."""
    cached: int = 0
    failed: int = 0
    prewarmed: int = 0
    """Calls that were made ahead of any agent, because an earlier run made the same ones."""
    seconds: float = 0.0
    seconds_saved: float = 0.0
    """What the shared and cached calls would have taken."""
    p50: float | None = None
    p75: float | None = None
    p99: float | None = None


@quick
@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. `ttft` has one entry per turn, None where the turn was not streamed."""

    queued: float = 0.0
    ttft: tuple[float | None, ...] = ()
    total: float = 0.0


NO_TIMING = Timing()


@quick
@dataclass(frozen=True, slots=True)
class AgentResult:
    """One per input. Either `output` holds the answer, or `error` says why there is none."""

    index: int
    key: str
    input: Any = None
    output: Any = None
    text: str = ""
    error: AgentError | None = None
    finish: FinishReason | None = None
    """How the last turn ended; "length" with an answer: it was cut at the max_tokens that the caller set."""
    usage: Usage = NO_USAGE
    turns: int = 0
    tool_calls: tuple[CallRecord, ...] = ()
    timing: Timing = NO_TIMING
    transcript: tuple[Message, ...] = ()
    """What the model has read and said, as its last turn had it."""
    compactions: int = 0
    """How often old tool results were shortened, so that the conversation fits the model's window."""

    @property
    def ok(self) -> bool:
        return self.error is None


class Results(list[AgentResult]):
    """One result per input, in input order."""

    def __init__(
        self,
        results: Iterable[AgentResult] = (),
        scheduling: Scheduling | None = None,
        prefix: PrefixReport | None = None,
    ) -> None:
        super().__init__(results)
        self.prefix = prefix
        """What the prompts share, as expected and as seen."""
        self.stages: Mapping[str, StageReport] = {}
        """In a flow: what each stage did, took and cost."""
        self.scheduling = scheduling or Scheduling()
        """How many requests were in flight and how many agents had a place in the KV cache, and why."""
