"""Request and reply of one turn, independent of a dialect."""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Literal, Protocol, get_args

from .fast_dataclass import dataclass
from .messages import Message, Prompt, Thought, ToolCall
from .schema import JsonSchema

FinishReason = Literal["stop", "calls", "length", "refusal"]
Lane = Literal["standard", "flex", "batch"]
"""Service class of a request: as usual; at a lower price, but it may wait or be refused for lack of capacity; in files
that the provider works off within hours."""
LANES: tuple[Lane, ...] = get_args(Lane)


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

    @property
    def worst(self) -> "Usage":
        """What is reserved."""
        ...

    @property
    def usd(self) -> float: ...

    def again(self) -> bool:
        """Reserves one more send, after one that may have been billed. False: the budget has no room for it, and the
        request must not be sent."""
        ...


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """Asks for the token ids of a turn."""

    prompt_ids: bytes = b""
    """The prompt as ids, which the server takes instead of rendering the messages; empty: it renders them."""


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
    lane: Lane = "standard"
    tokens: "TokenRequest | None" = None
    """Set if the reply needs the ids of its tokens, and the traits of the backend say that it has them."""

    def with_tokens(self, tokens: "TokenRequest") -> "Request":
        """As dataclasses.replace, in a tenth of the time: it is called for each turn of a run with tokens=True."""
        return Request(
            self.prompt,
            self.messages,
            self.model,
            self.sampling,
            self.answer_schema,
            self.may_call_tools,
            self.stream,
            self.agent,
            self.turn,
            self.priority,
            self.charge,
            self.must_call,
            self.index,
            self.seed,
            self.stage,
            self.hint,
            self.lane,
            tokens,
        )


LONG_PROMPTS = (32_000, 100_000, 128_000, 199_999, 200_000, 256_000, 272_000, 512_000, 524_288)
"""Tokens of a prompt above which some provider bills all of the request at higher prices."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage in tokens. `cached`, `written` and `written_hour` are parts of `input`: cache hits, and what the provider
    wrote to its cache for minutes and for an hour, which it bills at prices of their own."""

    input: int = 0
    cached: int = 0
    output: int = 0
    written: int = 0
    written_hour: int = 0
    parts: "tuple[UsagePart, ...]" = ()
    """What is of requests in other lanes or with long prompts, in the order of their lanes and limits. The rest is of
    the standard lane and of short prompts."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input + other.input,
            self.cached + other.cached,
            self.output + other.output,
            self.written + other.written,
            self.written_hour + other.written_hour,
            _merged(self.parts, other.parts) if self.parts and other.parts else self.parts or other.parts,
        )

    @property
    def all_written(self) -> int:
        """Tokens that the provider wrote to its cache, for however long."""
        return self.written + self.written_hour

    @property
    def of_request(self) -> "Usage":
        """The usage of one request, with its part if the prompt was long."""
        return self if self.parts or self.input <= LONG_PROMPTS[0] else self.in_lane("standard")

    def in_lane(self, lane: Lane) -> "Usage":
        """The usage of one request that was billed in this lane."""
        tokens = replace(self, parts=()) if self.parts else self
        above = bisect_left(LONG_PROMPTS, self.input)
        if lane == "standard" and not above:
            return tokens
        return replace(tokens, parts=(UsagePart(lane, LONG_PROMPTS[above - 1] if above else 0, tokens),))

    @property
    def lane(self) -> Lane:
        """The lane of the usage of one request."""
        return self.parts[0].lane if self.parts else "standard"

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """The lanes of a sum of requests."""
        if not self.parts:
            return ("standard",)
        return tuple(lane for lane in LANES if (part := self.of_lane(lane)).input or part.output)

    def of_lane(self, lane: Lane) -> "Usage":
        """The part of the requests in this lane."""
        parts = tuple(part for part in self.parts if part.lane == lane)
        if lane != "standard":
            return replace(sum((part.tokens for part in parts), NO_USAGE), parts=parts)
        others = [part.tokens._five for part in self.parts if part.lane != "standard"]
        rest = _of_five([count - sum(theirs) for count, *theirs in zip(self._five, *others, strict=True)])
        return replace(rest, parts=parts)

    @property
    def _five(self) -> tuple[int, int, int, int, int]:
        return self.input, self.cached, self.output, self.written, self.written_hour

    @property
    def counts(self) -> tuple[int, ...]:
        """As numbers, for compact formats: three, or five if tokens were written; of each part, five after the number
        of its lane and its limit."""
        if not self.parts:
            if self.written or self.written_hour:
                return self._five
            return self.input, self.cached, self.output
        parts = ((LANES.index(part.lane), part.above, *part.tokens._five) for part in self.parts)
        return (*self._five, *(number for part in parts for number in part))

    @classmethod
    def of_counts(cls, counts: Sequence[int]) -> "Usage":
        """The usage that has these `counts`."""
        total = _of_five(counts)
        if len(counts) <= 5:
            return total
        parts = [counts[start : start + 7] for start in range(5, len(counts), 7)]
        found = (UsagePart(LANES[lane], above, _of_five(five)) for lane, above, *five in parts if lane or above)
        return replace(total, parts=tuple(found))


@dataclass(frozen=True, slots=True)
class UsagePart:
    """Part of a usage that is billed at prices of its own."""

    lane: Lane
    above: int
    """One of LONG_PROMPTS, the highest below the prompts; 0: they were short."""
    tokens: Usage
    """Without parts."""


def _of_five(counts: Sequence[int]) -> Usage:
    """The usage that begins with these counts, of which the last two may be missing."""
    prompt, cached, output, written, written_hour = (*counts, 0, 0)[:5]
    return Usage(prompt, cached, output, written, written_hour)


def _merged(parts: tuple[UsagePart, ...], others: tuple[UsagePart, ...]) -> tuple[UsagePart, ...]:
    sums = {(LANES.index(part.lane), part.above): part for part in parts}
    for part in others:
        key = LANES.index(part.lane), part.above
        same = sums.get(key)
        sums[key] = part if same is None else UsagePart(part.lane, part.above, same.tokens + part.tokens)
    return tuple(sums[key] for key in sorted(sums))


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
class TurnTokens:
    """Tokens of one turn, as the engine has them: nothing is tokenized again. Ids are unsigned integers of 32 bits."""

    prompt: bytes
    sampled: bytes
    """Ids that the model sampled, with the one that ended the turn."""
    logprobs: bytes
    """Of each sampled id, floats of 32 bits, as engines compute them."""
    finish: str
    """Finish reason as the server names it."""
    model: str
    """Name of the model in the response."""
    version: str = ""
    """Version of its weights, if the server reports one."""

    @property
    def sequence(self) -> bytes:
        """The prompt and what was sampled."""
        return self.prompt + self.sampled


ID_BYTES = 4
"""Size of an id, and of a log probability."""


def packed_ids(ids: Sequence[int]) -> bytes:
    """Raises TypeError and OverflowError for what is not an id."""
    return array("I", ids).tobytes()


def unpacked_ids(packed: bytes) -> list[int]:
    return array("I", packed).tolist()


def packed_logprobs(logprobs: Sequence[float]) -> bytes:
    """Raises TypeError for what is not a number."""
    return array("f", logprobs).tobytes()


def unpacked_logprobs(packed: bytes) -> list[float]:
    return array("f", packed).tolist()


@dataclass(frozen=True, slots=True)
class Finished:
    """Last delta of a stream; a stream without it was truncated."""

    reason: FinishReason
    usage: Usage
    tokens: TurnTokens | None = None
    """Set if the request asks for them."""


Delta = TextDelta | ReasoningDelta | CallDelta | Finished


@dataclass(frozen=True, slots=True)
class Reply:
    """Complete turn of the model."""

    text: str
    finish: FinishReason
    usage: Usage
    calls: tuple[ToolCall, ...] = ()
    thoughts: tuple[Thought, ...] = ()
    tokens: TurnTokens | None = None
    """Set if the request asks for them. They are not part of a stored reply: see `Sampled`."""


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
    mask: Callable[[str], str] = field(default=str, compare=False, repr=False)
    """Masks the secrets that are sent to the server, in a text that the exchange does not hold masked: `request`, or a
    tool result."""


RequestObserver = Callable[[Exchange], None]
"""Called with each exchange. Must not raise."""
