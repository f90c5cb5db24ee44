"""Metrics of a run: the mean of each score with a 95 % interval."""

from collections.abc import Hashable, Iterable, Mapping
from statistics import fmean
from typing import Any, Literal

from ..core.fast_dataclass import dataclass
from .intervals import t_interval, wilson

Method = Literal["wilson", "t", "t by input"]


@dataclass(frozen=True, slots=True)
class Metric:
    """Mean of a score over the inputs. An input with several samples counts once, with the mean of their scores."""

    name: str
    mean: float | None
    """None if nothing was scored."""
    low: float | None
    """Lower end of the 95 % interval; None for a single input, whose interval is unknown."""
    high: float | None
    inputs: int
    """Number of inputs with at least one score."""
    scored: int
    """Number of answers with a score."""
    unscored: int
    """Number of agents without a score, because they failed or the scorer could not tell."""
    method: Method
    """wilson: for a proportion, if all answers to an input have the same score, 0 or 1. t: for a mean. t by input: for
    the means of the inputs, because samples of one input are not independent."""

    def __str__(self) -> str:
        if self.mean is None:
            return f"{self.name}: nothing scored, {self.unscored:,} unscored"
        interval = "" if self.low is None or self.high is None else f" [{self.low:.3f}, {self.high:.3f}]"
        left = f", {self.unscored:,} unscored" if self.unscored else ""
        answers = f"{self.scored:,} answers to " if self.scored != self.inputs else ""
        return f"{self.name}: {self.mean:.3f}{interval}, {answers}{count_inputs(self.inputs)}{left}"

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def count_inputs(count: int) -> str:
    return f"{count:,} input{'' if count == 1 else 's'}"


def metrics_of(rows: Iterable[tuple[Hashable, Mapping[str, float | None]]]) -> dict[str, Metric]:
    """Metric of each score by its name. Each row has an identifier of the input, and the scores of one answer to it."""
    by_name: dict[str, _Column] = {}
    for row, scores in rows:
        for name, score in scores.items():
            by_name.setdefault(name, _Column()).add(row, score)
    return {name: column.metric(name) for name, column in by_name.items()}


class _Column:
    """Scores of one name, by input."""

    def __init__(self) -> None:
        self._by_input: dict[Hashable, list[float]] = {}
        self._unscored = 0

    def add(self, row: Hashable, score: float | None) -> None:
        if score is None:
            self._unscored += 1
        else:
            self._by_input.setdefault(row, []).append(score)

    def metric(self, name: str) -> Metric:
        means = [fmean(scores) for scores in self._by_input.values()]
        scored = sum(map(len, self._by_input.values()))
        has_samples = scored > len(means)
        is_proportion = all(mean in (0.0, 1.0) for mean in means)
        method: Method = "wilson" if is_proportion else "t by input" if has_samples else "t"
        interval = wilson(sum(means), len(means)) if is_proportion else t_interval(means)
        low, high = interval or (None, None)
        return Metric(name, fmean(means) if means else None, low, high, len(means), scored, self._unscored, method)
