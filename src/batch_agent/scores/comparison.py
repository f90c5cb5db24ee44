"""Comparison of two runs over the same inputs: agreement, paired differences of scores, cost, time, changes."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import product
from statistics import fmean
from typing import Any

from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.requests import NO_USAGE
from ..core.results import AgentResult, dollars
from .intervals import Interval, mcnemar, paired_interval, t_interval, t_test, wilson
from .metrics import count_inputs
from .sample_groups import answer_text
from .scorer import text_of

_MAX_LINES = 10
_MAX_CHARS = 60


@dataclass(frozen=True, slots=True)
class RunTotals:
    """Totals of one of the two runs."""

    name: str
    answers: int
    failed: int
    tokens_in: int
    tokens_out: int
    cost: float | None
    """Dollars; None if the price of the model is unknown."""
    seconds: float | None
    """Mean duration of an agent; None without agents."""


@dataclass(frozen=True, slots=True)
class ScoreDifference:
    """Difference of a score between two runs, over the inputs scored by both."""

    name: str
    before: float
    after: float
    difference: float
    low: float | None
    """Lower end of the 95 % interval of the difference: by Newcombe's score method for scores that are 0 or 1, else by
    a paired t; None for a single input, for which it is unknown."""
    high: float | None
    p_value: float | None
    """Probability of such a difference if both runs were equally good."""
    test: str
    """mcnemar: exact test for scores that are 0 or 1. t: paired test by input."""
    inputs: int
    won: int
    """Number of inputs with a higher score in the second run."""
    lost: int

    def __str__(self) -> str:
        interval = "" if self.low is None or self.high is None else f" [{self.low:+.3f}, {self.high:+.3f}]"
        chance = "" if self.p_value is None else f", p = {self.p_value:.3g} ({self.test})"
        return (
            f"{self.name}: {self.before:.3f} -> {self.after:.3f}, {self.difference:+.3f}{interval}{chance}; "
            f"{self.won:,} better, {self.lost:,} worse of {count_inputs(self.inputs)}"
        )


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """An input with different answers or scores in the two runs."""

    index: int
    key: str
    before: tuple[str, ...]
    """Answers of the first run, one per sample."""
    after: tuple[str, ...]
    scores: Mapping[str, tuple[float | None, float | None]]
    """Mean scores of both runs by scorer."""


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Changes from one run to another. `str` is for people, `as_json` for programs."""

    before: RunTotals
    after: RunTotals
    shared: int
    """Number of inputs that both runs answered."""
    only_before: int
    only_after: int
    agreement: float | None
    """Share of equal answers to the shared inputs; with samples, the share of equal pairs."""
    agreement_low: float | None
    agreement_high: float | None
    scores: tuple[ScoreDifference, ...]
    changed: tuple[ChangedRow, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in self.__slots__ if name not in ("scores", "changed")},
            "before": _fields(self.before),
            "after": _fields(self.after),
            "scores": [_fields(each) for each in self.scores],
            "changed": [{**_fields(each), "scores": dict(each.scores)} for each in self.changed],
        }

    def __str__(self) -> str:
        return "\n".join(comparison_lines(self))


def compare_results(
    before: Sequence[AgentResult],
    after: Sequence[AgentResult],
    *,
    names: tuple[str, str] = ("before", "after"),
    field: str | None = None,
) -> RunComparison:
    """Compares the answers, or their field `field`. Inputs are the same if they have the same key or are equal; equal
    inputs are paired in order. Raises SpecError if the runs share no input, or no answer has the field."""
    first, second = _by_input(before, field), _by_input(after, field)
    if first and second and not first.keys() & second.keys():
        first, second = _by_input(before, field, by_key=False), _by_input(after, field, by_key=False)
    both = [key for key in first if key in second]
    if not both and (before and after):
        raise SpecError("The runs have no input in common: they cannot be compared.")
    pairs = [(first[key], second[key]) for key in both]
    answered = [(one, two) for one, two in pairs if one.answers and two.answers]
    if field is not None and pairs and not answered:
        raise SpecError(f"No answer has a field {field!r}.")
    agreements = [_agreement(one, two) for one, two in answered]
    interval = _interval(agreements)
    return RunComparison(
        _totals(names[0], before),
        _totals(names[1], after),
        len(both),
        len(first) - len(both),
        len(second) - len(both),
        fmean(agreements) if agreements else None,
        *interval,
        tuple(_differences(pairs)),
        tuple(_changed(one, two) for one, two in pairs if _differ(one, two)),
    )


def comparison_lines(comparison: RunComparison, max_changed: int = _MAX_LINES) -> list[str]:
    """The comparison as lines for people."""
    one, two = comparison.before, comparison.after
    alone = [
        f"{count:,} only in {run.name}" for count, run in ((comparison.only_before, one), (comparison.only_after, two))
        if count
    ]  # fmt: skip
    lines = [f"{one.name} -> {two.name}: {', '.join([f'{count_inputs(comparison.shared)} in both', *alone])}."]
    if comparison.agreement is not None:
        low, high = comparison.agreement_low, comparison.agreement_high
        interval = "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"
        lines.append(f"Agreement: {comparison.agreement:.3f}{interval}.")
    lines += [f"{each}." for each in comparison.scores]
    lines.append(f"Answers: {one.answers:,} -> {two.answers:,}; failed: {one.failed:,} -> {two.failed:,}.")
    lines.append(
        f"Tokens: {one.tokens_in:,} -> {two.tokens_in:,} in, {one.tokens_out:,} -> {two.tokens_out:,} out; "
        f"cost: {_cost(one)} -> {_cost(two)}; seconds of an agent: {_seconds(one)} -> {_seconds(two)}."
    )
    lines.append(f"Changed inputs: {len(comparison.changed):,}.")
    lines += [f"  {_line(row)}" for row in comparison.changed[:max_changed]]
    more = len(comparison.changed) - max_changed
    return [*lines, f"  and {more:,} more"] if more > 0 else lines


@dataclass(frozen=True, slots=True)
class _Input:
    """Answers and scores of one input in one run."""

    index: int
    key: str
    answers: tuple[str, ...]
    """Sorted, because samples have no order."""
    means: Mapping[str, float]


def _by_input(results: Iterable[AgentResult], field: str | None, *, by_key: bool = True) -> dict[str, _Input]:
    groups: dict[tuple[int, str], list[AgentResult]] = {}
    for result in results:
        groups.setdefault((result.index, result.key), []).append(result)
    found: dict[str, _Input] = {}
    for (index, key), group in sorted(groups.items(), key=lambda each: each[0][0]):
        name, copy = key if by_key else _text_of_input(group[0].input), 0
        while (unique := f"{name}-{copy}") in found:  # equal inputs
            copy += 1
        answers = [answer for result in group if (answer := answer_text(result, field)) is not None]
        found[unique] = _Input(index, key, tuple(sorted(answers)), _means(group))
    return found


def _text_of_input(value: Any) -> str:
    text = text_of(value)
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except ValueError:
        return text


def _means(group: Sequence[AgentResult]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for result in group:
        for name, score in result.scores.items():
            if score is not None:
                values.setdefault(name, []).append(score)
    return {name: fmean(scores) for name, scores in values.items()}


def _agreement(one: _Input, two: _Input) -> float:
    """Share of equal answers among all pairs of samples."""
    return fmean(a == b for a, b in product(one.answers, two.answers))


def _interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    is_proportion = all(value in (0.0, 1.0) for value in values)
    return (wilson(sum(values), len(values)) if is_proportion else t_interval(values)) or (None, None)


def _differences(pairs: Sequence[tuple[_Input, _Input]]) -> Iterable[ScoreDifference]:
    names = dict.fromkeys(name for one, two in pairs for name in one.means if name in two.means)
    for name in names:
        scored = [(one.means[name], two.means[name]) for one, two in pairs if name in one.means and name in two.means]
        differences = [after - before for before, after in scored]
        won, lost = sum(each > 0 for each in differences), sum(each < 0 for each in differences)
        is_binary = all(score in (0.0, 1.0) for pair in scored for score in pair)
        low, high = (_paired(scored) if is_binary else t_interval(differences)) or (None, None)
        yield ScoreDifference(
            name,
            fmean(before for before, _ in scored),
            fmean(after for _, after in scored),
            fmean(differences),
            low,
            high,
            mcnemar(lost, won) if is_binary else t_test(differences),
            "mcnemar" if is_binary else "t",
            len(scored),
            won,
            lost,
        )


def _paired(scored: Sequence[tuple[float, float]]) -> Interval | None:
    counts = Counter(scored)
    return paired_interval(counts[1.0, 1.0], counts[1.0, 0.0], counts[0.0, 1.0], counts[0.0, 0.0])


def _differ(one: _Input, two: _Input) -> bool:
    """Whether the distributions of the answers, or the scores, differ. Numbers of samples may differ."""
    return one.means != two.means or _shares(one.answers) != _shares(two.answers)


def _shares(answers: Sequence[str]) -> dict[str, Fraction]:
    return {answer: Fraction(count, len(answers)) for answer, count in Counter(answers).items()}


def _changed(one: _Input, two: _Input) -> ChangedRow:
    names = dict.fromkeys([*one.means, *two.means])
    scores = {name: (one.means.get(name), two.means.get(name)) for name in names}
    return ChangedRow(two.index, two.key, one.answers, two.answers, scores)


def _totals(name: str, results: Sequence[AgentResult]) -> RunTotals:
    usage = sum((result.usage for result in results), NO_USAGE)
    costs = [result.cost for result in results if result.cost is not None]
    seconds = [result.timing.total for result in results]
    failed = sum(not result.ok for result in results)
    return RunTotals(
        name,
        len(results) - failed,
        failed,
        usage.input,
        usage.output,
        sum(costs) if costs else None,
        fmean(seconds) if seconds else None,
    )


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


def _cost(run: RunTotals) -> str:
    return "unknown" if run.cost is None else dollars(run.cost)


def _seconds(run: RunTotals) -> str:
    return "unknown" if run.seconds is None else f"{run.seconds:.2f}"


def _line(row: ChangedRow) -> str:
    scores = "".join(
        f", {name} {_score(one)} -> {_score(two)}" for name, (one, two) in row.scores.items() if one != two
    )
    return f"{row.index} ({row.key[:_MAX_CHARS]}): {_shown(row.before)} -> {_shown(row.after)}{scores}"


def _score(score: float | None) -> str:
    return "unscored" if score is None else f"{score:g}"


def _shown(answers: Sequence[str]) -> str:
    text = " | ".join(dict.fromkeys(" ".join(answer.split()) for answer in answers)) or "no answer"
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}..."
