"""Results of a run, in input order, with their exports to tables and files; in a flow, the report of each stage."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ..core.errors import BatchAgentError
from ..core.fast_dataclass import dataclass
from ..core.requests import NO_USAGE, Usage
from ..core.results import AgentResult, T, dollars, truncation_note
from ..core.run_reports import CascadeReport, PrefixReport, Scheduling
from ..lazy_imports import lazy_modules
from .inputs import print_notice

with lazy_modules(globals()):
    from ..scores import comparison, metrics, sample_groups, score_book, scorer
    from . import table_export

if TYPE_CHECKING:  # only runs with samples or scores need these
    from ..scores.comparison import RunComparison
    from ..scores.metrics import Metric

_MAX_EXAMPLES = 3


class AgentsFailed(BatchAgentError):
    """Raised by `Results.raise_for_failures` if any agent failed. `results` holds all results of the run."""

    def __init__(self, message: str, results: "Results") -> None:
        super().__init__(message)
        self.results = results


class Results(list[AgentResult[T]]):
    """One result per input, in input order; with `samples=` and `models=`, one per sample and model of an input. `T` is
    the type of the answers, as in `AgentResult[T]`.

    As a table (`to_pandas`, `to_polars`, `to_parquet`, `to_csv`) it has one row per result and these columns: `index`,
    `key`, `ok`, `status`, `finish` ("length" if the last turn was cut at max_tokens); `input.NAME` for each field of
    the inputs and `output.NAME` for each field of the answers (`input` and `output` if there are no fields, as for
    strings); `error_kind`, `error_message` and `text` of failed agents; `turns`, `tool_calls` (the number),
    `input_tokens`, `cached_tokens`, `written_tokens` (to the provider's cache), `output_tokens`, `lane` ("standard",
    "flex", "batch", or several: "batch+standard"), `cost` (dollars, if the price is known) and `seconds`; `model` and
    `sample` if there are several, and `score.NAME` for each scorer. Nested values stay lists or objects; in Parquet and
    polars, a column with values of several types is JSON. Files are replaced atomically. A path that cannot be written
    or a missing library raises SpecError."""

    def __init__(
        self,
        results: Iterable[AgentResult[T]] = (),
        scheduling: Scheduling | None = None,
        prefix: PrefixReport | Callable[[], PrefixReport | None] | None = None,
    ) -> None:
        """`prefix`: the report, or a function that computes it when it is first read."""
        super().__init__(results)
        self._prefix = prefix
        self.stages: Mapping[str, StageReport] = {}
        """The report of each stage of a flow, by its name."""
        self.scheduling = scheduling or Scheduling()
        """Requests in flight and agents resident in the KV cache: their numbers, and the reasons."""
        self.judges: Mapping[str, Results] = {}
        """Results of the agents that judged the answers, by name of the judge."""

    @property
    def prefix(self) -> PrefixReport | None:
        """Prefix report: what the prompts share, as planned and as measured. Reading it lints the prompts."""
        return self._prefix() if callable(self._prefix) else self._prefix

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_prefix": self.prefix}

    @property
    def failed(self) -> "Results[T]":
        """Results of the agents that failed."""
        return self._part(result for result in self if not result.ok)

    @property
    def truncated(self) -> "Results[T]":
        """Results whose answers were cut at max_tokens: `ok`, with `finish == "length"`."""
        return self._part(result for result in self if result.is_truncated)

    @property
    def usage(self) -> Usage:
        """Usage of all agents together, including judges."""
        return sum((result.usage for results in (self, *self.judges.values()) for result in results), NO_USAGE)

    @property
    def cost(self) -> float | None:
        """Cost in dollars of all agents together, including judges; None if the price of the model is unknown."""
        known = [each.cost for results in (self, *self.judges.values()) for each in results if each.cost is not None]
        return sum(known) if known else None

    @property
    def outputs(self) -> list[T | None]:
        """The answers; None for an agent that failed."""
        return [result.output if result.ok else None for result in self]

    @property
    def metrics(self) -> "dict[str, Metric]":
        """The mean of each score with its 95 % interval, by scorer. For a run with several models, see `by_model`."""
        return metrics.metrics_of((result.index, result.scores) for result in self)

    @property
    def by_model(self) -> "dict[str, Results[T]]":
        """The results of each model, for a run with `models=`."""
        models = dict.fromkeys(result.model for result in self)
        return {model or "": self._part(each for each in self if each.model == model) for model in models}

    @property
    def by_input(self) -> "list[Results[T]]":
        """The samples of each input, and of each model if there are several."""
        return list(map(self._part, sample_groups.groups_of(self)))

    def votes(self, field: str | None = None) -> list[Counter[str]]:
        """The number of times that each answer was given, for each input of `by_input`. `field`: field of the answers;
        None: the whole answer."""
        return [sample_groups.votes_in(group, field) for group in sample_groups.groups_of(self)]

    def majority(self, field: str | None = None) -> "Results[T]":
        """One result per input: the first sample with the most frequent answer. `field`: field of the answers to
        compare, such as "label"; None: the whole answer. Raises SpecError if no answer has the field."""
        return self._part(sample_groups.majorities(self, field))

    def best_of(self, score: str | Callable[[AgentResult[T]], Any]) -> "Results[T]":
        """One result per input: the sample with the highest score. `score`: the name of a scorer, or a function of a
        result. Raises SpecError for an unknown name."""
        return self._part(sample_groups.best_of(group, score) for group in sample_groups.groups_of(self))

    def scored(self, *score: Any) -> "Results[T]":
        """The results with the scores of these scorers added. `score`: as `score=` of a run, but without judges, for
        which see `BatchAgent.score`. Raises SpecError."""
        book = score_book.ScoreBook(scorer.scorers_of(score), print_notice)
        return self._part(map(book.add, self))

    def compare(self, other: "Results[Any]", field: str | None = None) -> "RunComparison":
        """Compares these results with those of another run over the same inputs: agreement, paired differences of
        scores, cost, time and the inputs whose answers changed. `field`: field of the answers; None: the whole answer.
        Raises SpecError if the runs share no input."""
        return comparison.compare_results(self, other, field=field)

    def _part(self, results: Iterable[AgentResult[T]]) -> "Results[T]":
        return Results(results, self.scheduling, self._prefix)

    def raise_for_failures(self) -> Self:
        """Raises AgentsFailed if any agent failed, with the number of failures, their reasons and some examples."""
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
        """A pandas DataFrame. `like`: a DataFrame of the inputs, for example from `pd.read_csv`; columns `input.NAME`
        get the type of its column NAME, so that they can be joined."""
        table = table_export.result_table(self).to_pandas()
        return table if like is None else table_export.with_types_of(table, like)

    def to_polars(self) -> Any:
        """A polars DataFrame."""
        return table_export.result_table(self).to_polars()

    def to_parquet(self, path: str | Path) -> None:
        """Writes a Parquet file. Needs the extra `data`."""
        table_export.to_parquet(self, path)

    def to_csv(self, path: str | Path) -> None:
        """Writes a CSV file, with lists and objects as JSON."""
        table_export.result_table(self).to_csv(path)

    def to_jsonl(self, path: str | Path) -> None:
        """Writes a JSONL file, one object per result, like `batch-agent run`, with the answer unflattened."""
        table_export.to_jsonl(self, path)

    def to_chat_jsonl(self, path: str | Path, *, include_failed: bool = False) -> None:
        """Writes a JSONL file for fine-tuning: the conversation of each agent that answered, as OpenAI's `messages` and
        `tools`, with tool calls and their results. `include_failed`: whether to include failed agents."""
        table_export.to_chat_jsonl(self, path, include_failed=include_failed)

    def __str__(self) -> str:
        failed, usage, cut = self.failed, self.usage, sum(result.is_truncated for result in self)
        kinds = f" ({_count_kinds(failed)})" if failed else ""
        truncated = f"{truncation_note(cut)}; " if cut else ""
        cost = "" if self.cost is None else f"; {dollars(self.cost)}"
        written = f" and {usage.all_written:,} written to the cache" if usage.all_written else ""
        return (
            f"{len(self) - len(failed):,} of {len(self):,} agents answered, {len(failed):,} failed{kinds}; {truncated}"
            f"{usage.input:,} tokens in, {usage.cached:,} of them cached{written}, {usage.output:,} out{cost}"
            f"{self._scores_line()}"
        )

    def _scores_line(self) -> str:
        if not any(result.scores for result in self):
            return ""
        metrics = ((model, each) for model, results in self.by_model.items() for each in results.metrics.values())
        return "".join(f"; {model} {each}" if model else f"; {each}" for model, each in metrics)

    def __repr__(self) -> str:
        """A short summary, because a result holds a whole conversation."""
        return f"<Results: {self}>"

    def _repr_html_(self) -> str:
        return table_export.as_html(self, str(self))


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
    """Number of items that left the flow at this stage."""
    cost: float | None = None
    """Cost; None if the price of the model is unknown."""
    seconds: float = 0.0
    """Seconds from the first item to the last result."""
    cascade: CascadeReport | None = None
    """Decisions of the proxy, for a filter with `cascade=`."""

    @property
    def failed(self) -> int:
        """Number of failed agents."""
        return sum(not result.ok for result in self.results)

    @property
    def truncated(self) -> int:
        """Number of answers that were cut at max_tokens."""
        return sum(result.is_truncated for result in self.results)

    @property
    def usage(self) -> Usage:
        """Usage of the stage's agents, including their usage before a resume."""
        return sum((result.usage for result in self.results), NO_USAGE)
