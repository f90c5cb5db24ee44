"""Result of one agent: its answer or its error, its usage and timing, its tool calls and file changes."""

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal

from .errors import ErrorKind
from .fast_dataclass import dataclass
from .messages import Message, Prompt, ToolSource, chat_messages
from .requests import NO_USAGE, FinishReason, Usage
from .validation import explain_unknown_name

AgentStatus = Literal["answered", "failed", "running", "interrupted", "not_started"]
_UNFINISHED: dict[str, AgentStatus] = {
    ErrorKind.RUNNING: "running",
    ErrorKind.INTERRUPTED: "interrupted",
    ErrorKind.NOT_STARTED: "not_started",
}

ChangeKind = Literal["added", "modified", "deleted"]


@dataclass(frozen=True, slots=True)
class FileChange:
    """Change of one file. Lines of binary files and of files that are too large are not counted."""

    path: str
    """Relative to the workspace. Bytes that are not UTF-8 are shown as `\\xff`; the patch has them unchanged."""
    kind: ChangeKind
    added: int = 0
    removed: int = 0


@dataclass(frozen=True, slots=True)
class Changes:
    """File changes of an agent in its copy of the working directory."""

    files: tuple[FileChange, ...] = ()
    """Sorted by path."""
    patch: str = ""
    """Patch for `git apply`."""
    is_cut: bool = False
    """The patch is incomplete: for example, a file is too large. It can still be applied."""

    def __str__(self) -> str:
        if not self.files:
            return "no files changed"
        added, removed = sum(each.added for each in self.files), sum(each.removed for each in self.files)
        return f"{len(self.files)} file{'' if len(self.files) == 1 else 's'} changed, +{added} -{removed}"


if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)  # a plain AgentResult is an AgentResult[Any]
else:
    from typing import TypeVar  # has no defaults before Python 3.13

    T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AgentError:
    """Error of an agent. `retryable`: the same agent may succeed if it is run again."""

    kind: ErrorKind
    message: str
    retryable: bool = False

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"

    if not TYPE_CHECKING:  # a type checker would believe that it has every attribute

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"An AgentError has no {name!r}.{explain_unknown_name('result field', name, self.__slots__)}"
            )


@dataclass(frozen=True, slots=True)
class CallRecord:
    """Record of one tool call of an agent."""

    name: str
    arguments: str
    ok: bool
    seconds: float
    source: ToolSource = "executed"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Statistics of one tool of a run. Seconds are those of executions."""

    name: str
    requested: int = 0
    executed: int = 0
    shared: int = 0
    """Calls that received the result of another call's execution."""
    cached: int = 0
    failed: int = 0
    prewarmed: int = 0
    """Calls that were made before any agent needed them, because an earlier run made the same ones."""
    seconds: float = 0.0
    seconds_saved: float = 0.0
    """Seconds that the shared and cached calls would have taken."""
    p50: float | None = None
    p75: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations in seconds. `ttft` has one entry per turn; None if the turn was not streamed."""

    queued: float = 0.0
    ttft: tuple[float | None, ...] = ()
    total: float = 0.0


NO_TIMING = Timing()


@dataclass(frozen=True, slots=True)
class AgentResult(Generic[T]):
    """Result of one agent: one per input, or per sample of an input. Either `output` holds the answer, or `error` says
    why there is none.

    `T` is the type of the answer, from `output_schema`: `AgentResult[Review]`; `AgentResult` alone is of any type."""

    index: int
    key: str
    """Identifies the input in every run: the value of its field `key=`, or without that a hash."""
    input: Any = None
    output: T = None  # type: ignore[assignment]  # where `ok` is False
    """The answer, an instance of `output_schema`; text without one. None where `ok` is False."""
    text: str = ""
    error: AgentError | None = None
    finish: FinishReason | None = None
    """How the last turn ended: "stop", "calls", "length" or "refusal". "length" where `ok` is True: the answer was cut
    at the max_tokens that the caller set."""
    usage: Usage = NO_USAGE
    turns: int = 0
    tool_calls: tuple[CallRecord, ...] = ()
    timing: Timing = NO_TIMING
    transcript: tuple[Message, ...] = ()
    """Conversation as of the last turn, without the `prompt`."""
    compactions: int = 0
    """Number of compactions, which shorten old tool results so that the conversation fits the context window."""
    changes: Changes | None = None
    """File changes of a coding agent in its copy of the working directory."""
    cost: float | None = None
    """Dollars for its usage; None if the price of the model is unknown."""
    artifacts: tuple[Path, ...] = ()
    """Files that its tools made in `ToolContext.artifacts`."""
    sample: int | None = None
    """Number of the sample of its input, from 0 on; None if each input has one answer."""
    model: str | None = None
    """The model that answered, of a run with `models=`."""
    scores: Mapping[str, float | None] = field(default_factory=dict)
    """What the answer is worth, by scorer; None if it was not scored."""
    prompt: Prompt | None = field(default=None, compare=False, repr=False)
    """System prompt, tools and schema of the answers, which all agents of a run share. None if nothing was sent, and
    for a program, which has its own."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation in the format of OpenAI's chat completions, with the system prompt."""
        return chat_messages(self.prompt, self.transcript)

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def status(self) -> AgentStatus:
        """`answered` or `failed`. In a table made from a checkpoint also `running`, `interrupted` or `not_started`."""
        return "answered" if self.error is None else _UNFINISHED.get(self.error.kind, "failed")

    @property
    def is_truncated(self) -> bool:
        """Whether the answer is text that was cut at max_tokens. An answer that fits a schema is complete."""
        return self.finish == "length" and self.error is None and isinstance(self.output, str)

    @property
    def job_id(self) -> str:
        """Id of the result as in batch-agent 0.2; `key` is stable: it is the same for the same input in every run."""
        return f"job-{self.index}"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"An AgentResult has no {name!r}.{explain_unknown_name('result field', name, self.__slots__)}"
            )


def dollars(cost: float) -> str:
    """A cost as text; never "$0.0000" for one that is not zero."""
    if 0 < cost < 0.0001:
        return "less than $0.0001"
    return f"${cost:,.2f}" if cost >= 1 else f"${cost:.4f}"


def truncation_note(count: int) -> str:
    """A clause about answers that were cut, for summaries."""
    return f"{count:,} answer{' was' if count == 1 else 's were'} cut at max_tokens"


OnResult = Callable[[AgentResult], Any]
