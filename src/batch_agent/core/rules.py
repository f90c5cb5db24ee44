"""What the plan hands to the agents: the rules that all of them follow, and one job each."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from .prompt import Prompt
from .quick import quick
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
class Rules:
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


@quick
@dataclass(frozen=True, slots=True)
class Job:
    """One input, ready to be asked."""

    index: int
    key: str
    input: Any
    task: str
    problem: AgentError | None = None
    """Set when this input cannot be put into the task: the agent fails without asking anything."""
