"""What a caller gets back."""

from dataclasses import dataclass
from typing import Any

from .errors import ErrorKind
from .messages import Message
from .quick import quick
from .requests import NO_USAGE, FinishReason, Usage


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

    @property
    def ok(self) -> bool:
        return self.error is None
