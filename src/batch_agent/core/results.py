"""Result of one agent: its answer or its error, its usage and timing, its tool calls and file changes."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal

from .errors import ErrorKind
from .fast_dataclass import dataclass
from .messages import Message, ToolSource
from .requests import NO_USAGE, FinishReason, Usage
from .validation import explain_unknown_name

ChangeKind = Literal["added", "modified", "deleted"]


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file that is other than it was. Lines are not counted in a binary one, nor in one that is too large."""

    path: str
    """From the working folder on. Bytes that are no UTF-8 are shown as `\\xff`; the patch has them as they are."""
    kind: ChangeKind
    added: int = 0
    removed: int = 0


@dataclass(frozen=True, slots=True)
class Changes:
    """What an agent changed in its copy of the working folder."""

    files: tuple[FileChange, ...] = ()
    """Sorted by path."""
    patch: str = ""
    """As `git apply` takes it."""
    is_cut: bool = False
    """Something is missing in the patch, such as a file that is too large. What it has can be applied."""

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
    """Why an agent has no answer. `retryable`: running it again, unchanged, may work."""

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
    """One tool call of an agent, as it went."""

    name: str
    arguments: str
    ok: bool
    seconds: float
    source: ToolSource = "executed"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What one tool of a run was asked, did and saved. Seconds are those of executions."""

    name: str
    requested: int = 0
    executed: int = 0
    shared: int = 0
    """Calls that were answered by another call's execution while it ran."""
    cached: int = 0
    failed: int = 0
    prewarmed: int = 0
    """Calls that were made ahead of any agent, because an earlier run made the same ones."""
    seconds: float = 0.0
    seconds_saved: float = 0.0
    """What the shared and cached calls would have taken."""
    p50: float | None = None
    p75: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. `ttft` has one entry per turn, None where the turn was not streamed."""

    queued: float = 0.0
    ttft: tuple[float | None, ...] = ()
    total: float = 0.0


NO_TIMING = Timing()


@dataclass(frozen=True, slots=True)
class AgentResult(Generic[T]):
    """Result of one agent, one per input. Either `output` holds the answer, or `error` says why there is none.

    `T` is the type of the answer, from `output_schema`: `AgentResult[Review]`; `AgentResult` alone is of any type."""

    index: int
    key: str
    input: Any = None
    output: T = None  # type: ignore[assignment]  # where `ok` is False
    """The answer, an instance of `output_schema`; text without one. None where `ok` is False."""
    text: str = ""
    error: AgentError | None = None
    finish: FinishReason | None = None
    """How the last turn ended; "length" with an answer: it was cut at the max_tokens that the caller set."""
    usage: Usage = NO_USAGE
    turns: int = 0
    tool_calls: tuple[CallRecord, ...] = ()
    timing: Timing = NO_TIMING
    transcript: tuple[Message, ...] = ()
    """What the model has read and said, as its last turn had it."""
    compactions: int = 0
    """How often old tool results were shortened, so that the conversation fits the model's window."""
    changes: Changes | None = None
    """What a coding agent changed in its copy of the working folder."""

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def job_id(self) -> str:
        """As batch-agent 0.2 numbered its results; `key` is the same for the same input in every run."""
        return f"job-{self.index}"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"An AgentResult has no {name!r}.{explain_unknown_name('result field', name, self.__slots__)}"
            )


OnResult = Callable[[AgentResult], Any]
