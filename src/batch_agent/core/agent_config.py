"""Configuration that all agents of a run share, and the job of each agent."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Literal, Protocol

from .fast_dataclass import dataclass
from .images import PlacedImage
from .messages import Prompt
from .options import ContextLimits
from .requests import Lane, Sampling, TokenRequest
from .results import AgentError
from .schema import JsonSchema

ToolMode = Literal["native", "action"]

# Action mode: the model answers every turn with one JSON object, {tool, arguments} or {final}.
ACTION_TOOL = "tool"
ACTION_ARGUMENTS = "arguments"
ACTION_FINAL = "final"

# A server's schema must be an object; an answer of another shape travels under this key.
WRAPPED_ANSWER = "answer"


class InvalidOutput(ValueError):
    """The value does not fit the output schema; the message is written for the model."""


class OutputType(Protocol):
    """Type of the answers."""

    @property
    def json_schema(self) -> JsonSchema: ...

    def validate(self, value: Any, agent_input: Any = None) -> Any:
        """The typed answer. `agent_input`: for validators that compare the answer with it. Raises InvalidOutput."""
        ...

    def validate_json(self, text: str, agent_input: Any = None) -> Any:
        """As `validate`, with the JSON of the value, and faster. Raises InvalidOutput for a text that is not JSON
        too."""
        ...


@dataclass(frozen=True, slots=True)
class Compaction:
    """Settings of compaction: when and how old tool results are shortened."""

    trigger_tokens: int
    """Size of a request above which compaction starts."""
    summarizes: bool = False
    """Results are replaced by summaries, not only by a one-line note."""
    model: str | None = None
    """Model that writes the summaries; None: the model of the run."""
    prompt_chars: int = 0
    """Characters of the prompt at the start of every request."""

    @classmethod
    def of(
        cls, context: ContextLimits, window: int | None, max_tokens: int | None = None, prompt_chars: int = 0
    ) -> "Compaction | None":
        """Settings for a context window, `window` tokens if the backend reports it; None if the window is unknown or
        compaction is off. An answer of `max_tokens` must fit into the window too."""
        window = context.context_tokens or window
        if window is None or context.compact_at is None:
            return None
        room = window - (max_tokens or 0)
        trigger = int(context.compact_at * window)
        return cls(
            min(trigger, room) if room > 0 else trigger,
            context.compact_with == "summarize",
            context.compact_model,
            prompt_chars,
        )

    @property
    def target_tokens(self) -> int:
        """Size of a request after compaction: far below the trigger, so that compaction is rare."""
        return self.trigger_tokens // 2


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """Configuration of the agents of a run."""

    prompt: Prompt
    model: str
    sampling: Sampling
    tool_mode: ToolMode
    output: OutputType | None
    """None: the answer is the model's text."""
    turn_schema: JsonSchema | None
    """Schema that the server enforces on every turn but the last."""
    last_turn_schema: JsonSchema | None
    max_turns: int
    max_retries: int
    stream: bool = False
    starts_early: bool = False
    """Tool calls start while the model is still generating."""
    priority: int = 0
    lane: Lane = "standard"
    """Lane of requests, unless the turn runner chooses another one."""
    tokens: TokenRequest | None = None
    """Set if replies need the ids of their tokens."""
    compaction: Compaction | None = None
    """None: conversations are never compacted."""
    takes_images: bool = True
    """False: an image that a tool returns is only named."""


@dataclass(frozen=True, slots=True)
class Job:
    """Job of one agent: an input and its task."""

    index: int
    key: str
    input: Any
    task: str
    problem: AgentError | None = None
    """Set if this input cannot be rendered into the task: the agent fails without a request."""
    shared: int = 0
    """Length of the prefix that the task shares with others, in characters."""
    references_at: int = 0
    """Where tool results that are placed first are inserted into the task: behind the last complete line that all tasks
    share."""
    parts: tuple[str, ...] = ()
    """Tasks of its chunks, for an input that does not fit the window; `task` then has a placeholder for the text."""
    images: tuple[PlacedImage, ...] = ()
    """Images in the task, in order."""

    @property
    def chars(self) -> int:
        """Characters of the task, its images included by their tokens."""
        if not self.images:
            return len(self.task)
        return len(self.task) + sum(placed.image.chars for placed in self.images)


SAMPLE_MARK = "~"
"""Precedes the number of a sample, other than the first, at the end of a key."""


SampleId = tuple[int, int]
"""An agent of a run: the index of its input, and the number of its sample."""


def sample_of(key: str) -> int:
    """Number of the sample that an agent with this key answers (`samples=`)."""
    return int(key.rpartition("@")[2].partition(".")[0].partition(SAMPLE_MARK)[2] or 0)


def key_of_sample(key: str, sample: int) -> str:
    """The key of a sample, from that of the first one."""
    return f"{key}{SAMPLE_MARK}{sample}" if sample else key


def without_sample(key: str) -> str:
    """The key of the first sample of the same input."""
    row, at, rest = key.rpartition("@")
    own, dot, chunk = rest.partition(".")
    return f"{row}{at}{own.partition(SAMPLE_MARK)[0]}{dot}{chunk}"


def repeated_seed(seed: int, key: str) -> int | None:
    """Seed of an agent whose input repeats an earlier one, made from the run's seed and the numbers of the repetition
    and of the sample, which end the key (`4f...-2`, `4f...~1`); None for the first sample of the first of equal
    inputs, whose seed is the run's. With one seed for all, a server would give them one answer."""
    own = key.rpartition("@")[2].partition(".")[0]
    copy, mark, sample = own.partition(SAMPLE_MARK)
    repetition = f"{copy.partition('-')[2]}{mark}{sample}"
    if not repetition:
        return None
    return int.from_bytes(blake2b(f"{seed}-{repetition}".encode(), digest_size=4).digest()) >> 1


@dataclass(frozen=True, slots=True)
class FirstPrompt:
    """Size of a new agent's first prompt, in characters: the prefix, the references, then the agent's own text."""

    chars: int
    """Of the agent's own text."""
    shared_chars: int | None = None
    """Of the prefix; None: the prefix of all agents."""
    references: Mapping[str, int] | None = None
    """Of each reference, by its heading."""
