"""Request and reply of one turn, independent of a dialect."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Literal, Protocol

from .fast_dataclass import dataclass
from .messages import Message, Prompt, Thought, ToolCall
from .schema import JsonSchema

Lane = Literal["standard", "flex", "batch"]
"""Service class of a request. flex: an ordinary request at a lower price, which may wait or be refused for capacity.
batch: a request in a file that the provider works off within hours, at a lower price."""
FinishReason = Literal["stop", "calls", "length", "refusal"]


@dataclass(frozen=True, slots=True, eq=False)
class Sampling:
    """Sampling options. None leaves the default of the server."""

    temperature: float | None = None
    """Sampling temperature, at least 0."""
    top_p: float | None = None
    """Nucleus sampling: above 0, up to 1."""
    seed: int | None = None
    """Seed of the server's sampler. An input that is repeated has a seed of its own for each repetition, derived from
    this one."""
    max_tokens: int | None = None
    """Limit of the tokens that the model generates in a turn."""
    stop: tuple[str, ...] = ()
    """Strings that end a turn when the model generates one of them."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the request, sent unchanged."""


class Charge(Protocol):
    """Reservation of a request in the budget of its run. It covers one send."""

    def again(self) -> bool:
        """Reserves one more send, after one that may have been billed. False: the budget has no room for it, and the
        request must not be sent."""
        ...


PRIORITY_STEP = 100
"""Distance between the priorities of two runs; the turns of a run differ by less."""


@dataclass(frozen=True, slots=True)
class ContextHint:
    """What is known about the next use of an agent's context, for servers that manage their KV cache by it."""

    agent: str
    next_use: float | None = None
    """Seconds from the end of the request, or from now in a hint without a request, until the agent's next request is
    expected; None: unknown."""
    is_last: bool = False
    """No request of the agent follows, so the server may drop its context."""
    shared_tokens: int = 0
    """Tokens at the beginning of its prompts that other agents have too, which outlive the agent."""


@dataclass(frozen=True, slots=True)
class Request:
    """Request of one turn. Requests of a run share `prompt`, `model` and `sampling`; `messages` only ever grows."""

    prompt: Prompt
    messages: tuple[Message, ...]
    model: str
    sampling: Sampling
    answer_schema: JsonSchema | None = None
    """Schema that the server enforces; set only if the traits of the backend allow it."""
    may_call_tools: bool = True
    """False on the last turn: the tools stay in the prompt, the model may not call them."""
    stream: bool = False
    """Whether deltas are needed as they arrive. A plain request takes a quarter of the client's CPU time."""
    agent: str = ""
    """Key of the agent; empty for a request without an agent."""
    turn: int = 0
    priority: int = 0
    """Higher values go first. Backends invert it if their server counts the other way. That of the run, in steps of
    PRIORITY_STEP, and that of the turn."""
    charge: Charge | None = None
    """None in a run without a budget."""
    must_call: str | None = None
    """The tool that the model must call, "" for any of them; None: the model decides. Only programs set it. It has no
    effect if `may_call_tools` is False, or if the server cannot force a call."""
    index: int | None = None
    """Index of the agent's input, or of a pool's prompt; None for a request of neither."""
    seed: int | None = None
    """Seed of an agent whose input is a repetition of another; None: that of `sampling`."""
    stage: str = ""
    """Name of the stage in a flow, set where requests are logged; empty for a run of its own."""
    hint: ContextHint | None = None
    """Set only if the traits of the backend say that the server takes hints."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage in tokens. `cached`, `written` and `written_hour` are parts of `input`: cache hits, and what the provider
    wrote to its cache for minutes and for an hour, which it bills at prices of their own."""

    input: int = 0
    cached: int = 0
    output: int = 0
    written: int = 0
    written_hour: int = 0
    long: "Usage | None" = None
    """The part that is of requests whose prompts had more than LONG_PROMPT tokens; None: there was none."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input + other.input,
            self.cached + other.cached,
            self.output + other.output,
            self.written + other.written,
            self.written_hour + other.written_hour,
            self.long + other.long if self.long is not None and other.long is not None else self.long or other.long,
        )

    @property
    def all_written(self) -> int:
        """Tokens that the provider wrote to its cache, for however long."""
        return self.written + self.written_hour

    @property
    def of_request(self) -> "Usage":
        """The usage of one request, with its `long`."""
        return self if self.input <= LONG_PROMPT else replace(self, long=replace(self, long=None))

    @property
    def counts(self) -> tuple[int, ...]:
        """As numbers, for compact formats: three, five if tokens were written, ten if prompts were long."""
        plain = self.input, self.cached, self.output
        if self.long is not None:
            long = self.long
            return (
                *plain, self.written, self.written_hour,
                long.input, long.cached, long.output, long.written, long.written_hour,
            )  # fmt: skip
        return (*plain, self.written, self.written_hour) if self.written or self.written_hour else plain

    @classmethod
    def of_counts(cls, counts: Sequence[int]) -> "Usage":
        """The usage that has these `counts`."""
        prompt, cached, output, written, written_hour, *rest = (*counts, *(0,) * (_WITH_WRITTEN - len(counts)))
        return cls(prompt, cached, output, written, written_hour, cls.of_counts(rest) if any(rest) else None)


LONG_PROMPT = 200_000
"""Tokens of a prompt above which Anthropic and Google bill all of the request at higher prices."""
_WITH_WRITTEN = 5


NO_USAGE = Usage()


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Part of a thought. A signature ends it; a redacted thought is one delta."""

    text: str = ""
    signature: str = ""
    redacted: str = ""


@dataclass(frozen=True, slots=True)
class CallDelta:
    """Complete tool call: dialects assemble its pieces, so that it can start at once."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class Finished:
    """Last delta of a stream; a stream without it was truncated."""

    reason: FinishReason
    usage: Usage


Delta = TextDelta | ReasoningDelta | CallDelta | Finished


@dataclass(frozen=True, slots=True)
class Reply:
    """Complete turn of the model."""

    text: str
    finish: FinishReason
    usage: Usage
    calls: tuple[ToolCall, ...] = ()
    thoughts: tuple[Thought, ...] = ()


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """A request as a backend sends it, with secrets masked. Empty strings where a backend does not use HTTP."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: Any
    """The body as JSON data."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request as it was sent, and the response as it was received, with secrets masked. Each attempt is one."""

    request: Request
    sent: EncodedRequest
    at: float
    """When it was sent, in seconds since the epoch."""
    seconds: float
    """Until the end of the response."""
    status: int | None = None
    """None if no response was received."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of the response."""
    response: Any = None
    """The body: JSON data, or text if it is not JSON, such as the events of a stream."""
    usage: Usage | None = None
    error: str | None = None


RequestObserver = Callable[[Exchange], None]
"""Called with each exchange. Must not raise."""
