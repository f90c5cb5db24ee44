"""What a caller gets back.

What the work of a coding agent changed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Self

from .errors import AgentsFailed, ErrorKind
from .fast_dataclass import dataclass
from .messages import Message, ToolSource
from .requests import NO_USAGE, FinishReason, Usage
from .run_reports import PrefixReport, Scheduling
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

    from .flow_result import StageReport

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

_EXAMPLES = 3


class Results(list[AgentResult[T]]):
    """One result per input, in input order. `T` is the type of the answers, as in `AgentResult[T]`.

    As a table (`to_pandas`, `to_polars`, `to_parquet`, `to_csv`) it has a row for each, and these columns: `index`,
    `key`, `ok`; `input.NAME` for each field of the inputs and `output.NAME` for each field of the answers (`input` and
    `output` for those without fields, such as texts); `error_kind`, `error_message` and `text` of what failed; `turns`,
    `tool_calls` (how many), `input_tokens`, `cached_tokens`, `output_tokens` and `seconds`. What lies deeper stays a
    list or an object; in Parquet and polars, a column with values of several kinds is JSON. A file is replaced when
    all is written, not before. Places that cannot be written and libraries that are missing raise SpecError."""

    def __init__(
        self,
        results: Iterable[AgentResult[T]] = (),
        scheduling: Scheduling | None = None,
        prefix: PrefixReport | Callable[[], PrefixReport | None] | None = None,
    ) -> None:
        """`prefix`: a report, or what makes it when it is read."""
        super().__init__(results)
        self._prefix = prefix
        self.stages: Mapping[str, StageReport] = {}
        """In a flow: what each stage did, took and cost."""
        self.scheduling = scheduling or Scheduling()
        """How many requests were in flight and how many agents had a place in the KV cache, and why."""

    @property
    def prefix(self) -> PrefixReport | None:
        """What the prompts share, as expected and as measured. The prompts are linted when it is read."""
        return self._prefix() if callable(self._prefix) else self._prefix

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_prefix": self.prefix}

    @property
    def failed(self) -> "Results[T]":
        """Those without an answer."""
        return Results((result for result in self if not result.ok), self.scheduling, self._prefix)

    @property
    def usage(self) -> Usage:
        """Of all together."""
        return sum((result.usage for result in self), NO_USAGE)

    @property
    def outputs(self) -> list[T | None]:
        """The answers; None where there is none."""
        return [result.output if result.ok else None for result in self]

    def raise_for_failures(self) -> Self:
        """Raises AgentsFailed if any agent failed: how many, why, and the first ones."""
        failed = self.failed
        if not failed:
            return self
        shown = [f"input {result.index}: {result.error}" for result in failed[:_EXAMPLES]]
        more = [f"and {len(failed) - _EXAMPLES:,} more"] if len(failed) > _EXAMPLES else []
        raise AgentsFailed(
            f"{len(failed):,} of {len(self):,} agents failed ({_kinds(failed)}): {'; '.join([*shown, *more])}", self
        )

    def to_pandas(self) -> Any:
        """A pandas DataFrame."""
        from ..data import export as exporting

        return exporting.to_pandas(self)

    def to_polars(self) -> Any:
        """A polars DataFrame."""
        from ..data import export as exporting

        return exporting.to_polars(self)

    def to_parquet(self, path: str | Path) -> None:
        """Needs the extra `data`."""
        from ..data import export as exporting

        exporting.to_parquet(self, path)

    def to_csv(self, path: str | Path) -> None:
        """Lists and objects are JSON."""
        from ..data import export as exporting

        exporting.to_csv(self, path)

    def to_jsonl(self, path: str | Path) -> None:
        """One JSON object per line, as `batch-agent run` writes them: with the answers as they are."""
        from ..data import export as exporting

        exporting.to_jsonl(self, path)

    def __str__(self) -> str:
        failed, usage = self.failed, self.usage
        kinds = f" ({_kinds(failed)})" if failed else ""
        return (
            f"{len(self) - len(failed):,} of {len(self):,} agents answered, {len(failed):,} failed{kinds}; "
            f"{usage.input:,} tokens in, {usage.cached:,} of them cached, {usage.output:,} out"
        )

    def __repr__(self) -> str:
        """Short: a result holds a whole conversation."""
        return f"<Results: {self}>"

    def _repr_html_(self) -> str:
        from ..data import export as exporting

        return exporting.as_html(self, str(self))


def _kinds(failed: Iterable[AgentResult]) -> str:
    counts = Counter(result.error.kind for result in failed if result.error)
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.most_common())
