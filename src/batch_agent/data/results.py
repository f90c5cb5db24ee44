"""Results of a run, in input order, with their exports to tables and files; in a flow, the report of each stage."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Self

from ..core.errors import BatchAgentError
from ..core.fast_dataclass import dataclass
from ..core.requests import NO_USAGE, Usage
from ..core.results import AgentResult, T, dollars, truncation_note
from ..core.run_reports import PrefixReport, Scheduling

_MAX_EXAMPLES = 3


class AgentsFailed(BatchAgentError):
    """Raised by `Results.raise_for_failures` if any agent failed. `results` holds all results of the run."""

    def __init__(self, message: str, results: "Results") -> None:
        super().__init__(message)
        self.results = results


class Results(list[AgentResult[T]]):
    """One result per input, in input order. `T` is the type of the answers, as in `AgentResult[T]`.

    As a table (`to_pandas`, `to_polars`, `to_parquet`, `to_csv`) it has one row per result and these columns: `index`,
    `key`, `ok`, `status`, `finish` ("length" where the last turn was cut at max_tokens); `input.NAME` for each field of
    the inputs and `output.NAME` for each field of the answers (`input` and `output` where there are no fields, such as
    strings); `error_kind`, `error_message` and `text` of failed agents; `turns`, `tool_calls` (the number),
    `input_tokens`, `cached_tokens`, `written_tokens` (to the provider's cache), `output_tokens`, `lane` ("standard",
    "flex", "batch", or several: "batch+standard"), `cost` (dollars, where the price is known) and `seconds`. Nested
    values stay lists or objects; in Parquet and polars, a column with values of several types is JSON. Files are
    replaced atomically. A path that cannot be written or a missing library raises SpecError."""

    def __init__(
        self,
        results: Iterable[AgentResult[T]] = (),
        scheduling: Scheduling | None = None,
        prefix: PrefixReport | Callable[[], PrefixReport | None] | None = None,
    ) -> None:
        """`prefix`: the report, or a function that computes it when it is read."""
        super().__init__(results)
        self._prefix = prefix
        self.stages: Mapping[str, StageReport] = {}
        """In a flow: the report of each stage by its name."""
        self.scheduling = scheduling or Scheduling()
        """Requests in flight and agents resident in the KV cache: how many, and why."""

    @property
    def prefix(self) -> PrefixReport | None:
        """Prefix report: what the prompts share, as planned and as measured. Reading it lints the prompts."""
        return self._prefix() if callable(self._prefix) else self._prefix

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_prefix": self.prefix}

    @property
    def failed(self) -> "Results[T]":
        """Results of the agents that failed."""
        return Results((result for result in self if not result.ok), self.scheduling, self._prefix)

    @property
    def truncated(self) -> "Results[T]":
        """Results whose answers were cut at max_tokens: `ok`, with `finish == "length"`."""
        return Results((result for result in self if result.is_truncated), self.scheduling, self._prefix)

    @property
    def usage(self) -> Usage:
        """Usage of all agents together."""
        return sum((result.usage for result in self), NO_USAGE)

    @property
    def cost(self) -> float | None:
        """Dollars for all agents together; None if the price of the model is unknown."""
        known = [result.cost for result in self if result.cost is not None]
        return sum(known) if known else None

    @property
    def outputs(self) -> list[T | None]:
        """The answers; None for an agent that failed."""
        return [result.output if result.ok else None for result in self]

    def raise_for_failures(self) -> Self:
        """Raises AgentsFailed if any agent failed; the message has their number, the reasons and some examples."""
        failed = self.failed
        if not failed:
            return self
        shown = [f"input {result.index}: {result.error}" for result in failed[:_MAX_EXAMPLES]]
        more = [f"and {len(failed) - _MAX_EXAMPLES:,} more"] if len(failed) > _MAX_EXAMPLES else []
        raise AgentsFailed(
            f"{len(failed):,} of {len(self):,} agents failed ({_count_kinds(failed)}): {'; '.join([*shown, *more])}",
            self,
        )

    def to_pandas(self, like: Any = None) -> Any:
        """A pandas DataFrame. `like`: a DataFrame of the inputs, such as `pd.read_csv` returns; columns `input.NAME`
        get the type of its column NAME, so that they can be joined."""
        from . import table_export as export

        table = export.result_table(self).to_pandas()
        return table if like is None else export.with_types_of(table, like)

    def to_polars(self) -> Any:
        """A polars DataFrame."""
        from . import table_export as export

        return export.result_table(self).to_polars()

    def to_parquet(self, path: str | Path) -> None:
        """Parquet file. Needs the extra `data`."""
        from . import table_export as export

        export.to_parquet(self, path)

    def to_csv(self, path: str | Path) -> None:
        """CSV file; lists and objects are JSON."""
        from . import table_export as export

        export.result_table(self).to_csv(path)

    def to_jsonl(self, path: str | Path) -> None:
        """JSONL file: one object per result, as `batch-agent run` writes it, with the answer unflattened."""
        from . import table_export as export

        export.to_jsonl(self, path)

    def to_chat_jsonl(self, path: str | Path, *, include_failed: bool = False) -> None:
        """JSONL file for fine-tuning: the conversation of each agent that answered, as OpenAI's `messages` and `tools`,
        with tool calls and their results. `include_failed`: of agents that failed too."""
        from . import table_export as export

        export.to_chat_jsonl(self, path, include_failed=include_failed)

    def __str__(self) -> str:
        failed, usage, cut = self.failed, self.usage, sum(result.is_truncated for result in self)
        kinds = f" ({_count_kinds(failed)})" if failed else ""
        truncated = f"{truncation_note(cut)}; " if cut else ""
        cost = "" if self.cost is None else f"; {dollars(self.cost)}"
        written = f" and {usage.all_written:,} written to the cache" if usage.all_written else ""
        return (
            f"{len(self) - len(failed):,} of {len(self):,} agents answered, {len(failed):,} failed{kinds}; {truncated}"
            f"{usage.input:,} tokens in, {usage.cached:,} of them cached{written}, {usage.output:,} out{cost}"
        )

    def __repr__(self) -> str:
        """Short: a result holds a whole conversation."""
        return f"<Results: {self}>"

    def _repr_html_(self) -> str:
        from . import table_export as export

        return export.as_html(self, str(self))


def _count_kinds(failed: Iterable[AgentResult]) -> str:
    counts = Counter(result.error.kind for result in failed if result.error)
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.most_common())


@dataclass(frozen=True, slots=True)
class StageReport:
    """Report of one stage of a flow. Its results are in the order of their items."""

    name: str
    backend: str = ""
    model: str = ""
    results: Results = field(default_factory=Results)
    skipped: int = 0
    """Items that left the flow here."""
    cost: float | None = None
    """Cost; None if the price of the model is unknown."""
    seconds: float = 0.0
    """From its first item to its last result."""

    @property
    def failed(self) -> int:
        """Number of agents that failed."""
        return sum(not result.ok for result in self.results)

    @property
    def truncated(self) -> int:
        """Number of answers that were cut at max_tokens."""
        return sum(result.is_truncated for result in self.results)

    @property
    def usage(self) -> Usage:
        """Usage of its agents, including what they used before a resume."""
        return sum((result.usage for result in self.results), NO_USAGE)
