"""One turn on the wire: what is asked of a backend, and what comes back."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal, Protocol

from .fast_dataclass import dataclass
from .messages import Message, Prompt, Thought, ToolCall
from .schema import JsonSchema

FinishReason = Literal["stop", "calls", "length", "refusal"]


@dataclass(frozen=True, slots=True, eq=False)
class Sampling:
    """How the model chooses its tokens. None leaves the server's own default."""

    temperature: float | None = None
    """Sampling temperature, at least 0."""
    top_p: float | None = None
    """Nucleus sampling: above 0, up to 1."""
    seed: int | None = None
    """Seed of the server's sampler."""
    max_tokens: int | None = None
    """Tokens that the model may write in a turn."""
    stop: tuple[str, ...] = ()
    """Texts that end a turn when the model writes one of them."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the request, sent as they are."""


class Charge(Protocol):
    """Reservation of a request in the budget of its run. It covers one send."""

    def again(self) -> bool:
        """Reserves one more send, after one that may have been billed. False: the budget has no room for it, and the
        request must not be sent."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """One turn. Requests of a run share `prompt`, `model` and `sampling`; `messages` only ever grows at its end."""

    prompt: Prompt
    messages: tuple[Message, ...]
    model: str
    sampling: Sampling
    answer_schema: JsonSchema | None = None
    """The server must keep to this schema (only set where the backend's traits say that it can)."""
    may_call_tools: bool = True
    """False on the last turn: the tools stay in the prompt, the model may not call them."""
    stream: bool = False
    """Whether anybody needs the deltas as they come. A plain request costs a quarter of the client's CPU."""
    agent: str = ""
    """Whose turn it is; empty for a request that belongs to no agent."""
    turn: int = 0
    priority: int = 0
    """Higher goes first. Backends turn it round where their server counts the other way."""
    charge: Charge | None = None
    """None in a run without a budget."""
    must_call: str | None = None
    """The tool that the model has to call, "" for any of them; None leaves it to the model. For programs that ask for
    it: it says nothing where tools may not be called, and servers that cannot force a call pass over it."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens. `cached` is the part of `input` that the server did not compute again."""

    input: int = 0
    cached: int = 0
    output: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.input + other.input, self.cached + other.cached, self.output + other.output)


NO_USAGE = Usage()


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of a thought. A signature ends it; a redacted one comes whole."""

    text: str = ""
    signature: str = ""
    redacted: str = ""


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A whole tool call: dialects put the pieces together, so that it can be started at once."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class Finished:
    """Always the last delta; a stream that ends without it was cut off."""

    reason: FinishReason
    usage: Usage


Delta = TextDelta | ReasoningDelta | CallDelta | Finished


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole turn of the model."""

    text: str
    finish: FinishReason
    usage: Usage
    calls: tuple[ToolCall, ...] = ()
    thoughts: tuple[Thought, ...] = ()
