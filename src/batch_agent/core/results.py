"""What a caller gets back."""

from dataclasses import dataclass, field
from typing import Any

from .errors import ErrorKind
from .messages import Message
from .requests import FinishReason, Usage


@dataclass(frozen=True, slots=True)
class AgentError:
    """Why an agent has no answer. `retryable`: running it again, unchanged, may work."""

    kind: ErrorKind
    message: str
    retryable: bool = False

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One tool call of an agent, as it went."""

    name: str
    arguments: str
    ok: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. `ttft` has one entry per turn, None where the turn was not streamed."""

    queued: float = 0.0
    ttft: tuple[float | None, ...] = ()
    total: float = 0.0


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
    usage: Usage = field(default_factory=Usage)
    turns: int = 0
    tool_calls: tuple[CallRecord, ...] = ()
    timing: Timing = field(default_factory=Timing)
    transcript: tuple[Message, ...] = ()

    @property
    def ok(self) -> bool:
        return self.error is None
