"""What the plan hands to the agents: the rules that all of them follow, and one job each."""

from typing import Any, Literal, Protocol

from .fast_dataclass import dataclass
from .messages import Prompt
from .options import Context
from .requests import Sampling
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
    """What the caller wants each answer to be."""

    @property
    def json_schema(self) -> JsonSchema: ...

    def validate(self, value: Any) -> Any:
        """The typed answer, or InvalidOutput."""
        ...


@dataclass(frozen=True, slots=True)
class Compaction:
    """When and how old tool results are shortened."""

    most: int
    """Tokens that a request may have before that happens."""
    summarizes: bool = False
    """Summaries stay of them, not only a line that says so."""
    model: str | None = None
    """Who makes the summaries, if not the run's own model."""
    prompt_chars: int = 0
    """Characters that every request begins with."""

    @classmethod
    def of(
        cls, context: Context, window: int | None, max_tokens: int | None = None, prompt_chars: int = 0
    ) -> "Compaction | None":
        """None where nobody knows the window (`window` is what the backend says), or nobody wants it. An answer of
        `max_tokens` must fit beside the request."""
        window = context.context_tokens or window
        if window is None or context.compact_at is None:
            return None
        room = window - (max_tokens or 0)
        most = int(context.compact_at * window)
        return cls(
            min(most, room) if room > 0 else most,
            context.compact_with == "summarize",
            context.compact_model,
            prompt_chars,
        )

    @property
    def enough(self) -> int:
        """Tokens that are left when it was done: so far below `most` that it is rarely done."""
        return self.most // 2


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """The same for every agent of a run."""

    prompt: Prompt
    model: str
    sampling: Sampling
    tool_mode: ToolMode
    output: OutputType | None
    """None: the answer is the model's text."""
    turn_schema: JsonSchema | None
    """Enforced by the server on every turn but the last."""
    last_turn_schema: JsonSchema | None
    max_turns: int
    max_retries: int
    stream: bool = False
    starts_early: bool = False
    """Tool calls are started while the model still speaks."""
    priority: int = 0
    compaction: Compaction | None = None
    """None: conversations only grow."""


@dataclass(frozen=True, slots=True)
class Job:
    """One input, ready to be asked."""

    index: int
    key: str
    input: Any
    task: str
    problem: AgentError | None = None
    """Set when this input cannot be put into the task: the agent fails without asking anything."""
    shared: int = 0
    """Characters at the beginning of the task that it has in common with others."""
    parts: tuple[str, ...] = ()
    """The tasks of its parts, for an input that does not fit the window; `task` then has a placeholder for the text
    that was cut."""
