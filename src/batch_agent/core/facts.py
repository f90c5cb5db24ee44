"""The durable story of one agent. Replaying its facts rebuilds its conversation byte for byte."""

from collections.abc import Sequence
from typing import Any

from .fast_dataclass import dataclass
from .messages import ToolCall, ToolResult
from .program_runtime import ProgramTrace
from .requests import Reply


@dataclass(frozen=True, slots=True)
class Started:
    """An agent was given its task. Its story can be told without the list of inputs that it came from."""

    index: int
    input: Any
    """As JSON has it: what cannot be written down is its text."""
    task: str


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
    """What a program did to come to it, where agents are programs."""
    cut_at: int | None = None
    """The max_tokens at which the reply was cut off, if it was."""


@dataclass(frozen=True, slots=True)
class Returned:
    """The calls of a turn were answered."""

    results: tuple[ToolResult, ...]
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Claimed:
    """A call that changes something is about to be made. Without Settled or Withdrawn, nobody knows whether it was."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A claim was taken back: the function of the call was not entered, and the call is still to be made."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class Settled:
    """A claimed call came to its end. `Returned` follows when all calls of the turn have."""

    result: ToolResult


@dataclass(frozen=True, slots=True)
class CarriedOver:
    """An agent that had failed starts again, and these of its calls were already made."""

    results: tuple[ToolResult, ...]


@dataclass(frozen=True, slots=True)
class Shortened:
    """What stands in the place of a tool result from now on."""

    place: int
    """Which of the agent's results it is, counted from its first."""
    content: str
    is_summary: bool = False


@dataclass(frozen=True, slots=True)
class Compacted:
    """The conversation came near the end of the model's window, and old tool results were shortened."""

    results: tuple[Shortened, ...]
    before: int = 0
    """Tokens of the next request, estimated, if nothing had been shortened."""
    after: int = 0
    seconds: float = 0.0


Fact = Started | Replied | Returned | Claimed | Withdrawn | Settled | CarriedOver | Compacted


def calls_made(facts: Sequence[Fact]) -> tuple[ToolResult, ...]:
    """The calls of an agent that changed something, in this life or in one before it."""
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
