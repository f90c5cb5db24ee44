"""Durable facts of an agent. Replaying them rebuilds its conversation byte for byte."""

from collections.abc import Sequence
from typing import Any

from .agent_config import Job
from .fast_dataclass import dataclass
from .images import PlacedImage
from .messages import ToolCall, ToolResult
from .program_runtime import ProgramTrace
from .requests import Reply
from .results import AgentError


@dataclass(frozen=True, slots=True)
class Started:
    """The agent has its task. With it, the agent can be restored without the list of inputs."""

    index: int
    input: Any
    """JSON value; what JSON cannot hold is its `str`."""
    task: str
    references_at: int = 0
    """Where references are inserted into the task, in characters."""
    images: tuple[PlacedImage, ...] = ()
    """Images in the task, without their bytes."""

    @classmethod
    def of(cls, job: Job) -> "Started":
        return cls(job.index, job.input, job.task, job.references_at, job.images)


@dataclass(frozen=True, slots=True)
class Replied:
    """The model answered a turn."""

    reply: Reply
    queued: float = 0.0
    """Seconds that the turn waited for a slot."""
    seconds: float = 0.0
    ttft: float | None = None
    """Seconds to the first token; None when the turn was not streamed."""
    attempts: int = 1
    work: ProgramTrace | None = None
    """Work of the program, if agents are programs."""
    cut_at: int | None = None
    """The max_tokens at which the reply was cut off, if it was."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """Token ids of one request, recorded before the reply (`tokens=True`). It is not part of the conversation."""

    record: bytes
    """Encoded by rollouts/token_record.py, and decoded only where ids are read."""


@dataclass(frozen=True, slots=True)
class Returned:
    """All tool calls of a turn have results."""

    results: tuple[ToolResult, ...]
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Claimed:
    """A call that changes something is about to be made. Without Settled or Withdrawn, its outcome is unknown."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A claim was cancelled: the tool function was not entered, and the call is still to be made."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class Settled:
    """A claimed call has a result. `Returned` follows when all calls of the turn have one."""

    result: ToolResult


@dataclass(frozen=True, slots=True)
class CarriedOver:
    """A failed agent starts again; these of its calls were already made."""

    results: tuple[ToolResult, ...]


@dataclass(frozen=True, slots=True)
class Shortened:
    """Replacement of a tool result from now on."""

    index: int
    """Index among all tool results of the agent."""
    content: str
    is_summary: bool = False


@dataclass(frozen=True, slots=True)
class Compacted:
    """Old tool results were shortened, because the conversation came near the end of the context window."""

    results: tuple[Shortened, ...]
    before: int = 0
    """Estimated tokens of the next request without compaction."""
    after: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Failed:
    """The agent ended with an error. It is not part of the conversation: a run that retries the agent continues with
    the facts before it, and what it appends supersedes the failure."""

    error: AgentError
    seconds: float = 0.0
    """Duration of the attempt, with waiting."""


Fact = Started | Replied | Sampled | Returned | Claimed | Withdrawn | Settled | CarriedOver | Compacted | Failed


def failure_of(facts: Sequence[Fact]) -> Failed | None:
    """The failure that ended the agent; None if it has answered or is not finished."""
    last = facts[-1] if facts else None
    return last if isinstance(last, Failed) else None


def calls_made(facts: Sequence[Fact]) -> tuple[ToolResult, ...]:
    """Calls of an agent that changed something, in this attempt or an earlier one."""
    made: list[ToolResult] = []
    for fact in facts:
        match fact:
            case CarriedOver(results):
                made += results
            case Settled(result):
                made.append(result)
            case _:
                pass
    return tuple(made)
