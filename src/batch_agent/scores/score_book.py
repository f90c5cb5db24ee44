"""Score book: scores each answer of a run when it arrives, and keeps the scores."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from ..core.results import AgentResult
from .scorer import NoSuchField, Scorer, as_number

AnswerScores = Mapping[tuple[str, int], Mapping[str, float | None]]
"""Scores by scorer for each answer, which is identified by the key of its input and the number of its sample."""


def scores_by_answer(results: Iterable[AgentResult], names: Collection[str]) -> AnswerScores:
    """The scores of these scorers."""
    return {
        (each.key, each.sample or 0): {name: score for name, score in each.scores.items() if name in names}
        for each in results
    }


class ScoreBook:
    """Scores of the answers so far. If a scorer raises, the answer stays unscored; the first error is reported."""

    def __init__(self, scorers: Sequence[Scorer], notify: Callable[[str], None]) -> None:
        self._scorers = scorers
        self._notify = notify
        self._reported: set[str] = set()
        self.scores: dict[tuple[str, int], Mapping[str, float | None]] = {}

    def add(self, result: AgentResult) -> AgentResult:
        """The result with its scores, which are None for a failed agent."""
        found = {each.name: self._score(each, result) for each in self._scorers}
        self.scores[result.key, result.sample or 0] = found
        return replace(result, scores={**result.scores, **found})

    def _score(self, scorer: Scorer, result: AgentResult) -> float | None:
        if not result.ok:
            return None
        try:
            return as_number(scorer(result.output, result.input))
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            if scorer.name not in self._reported:
                self._reported.add(scorer.name)
                is_missing = isinstance(error, NoSuchField)
                why = f"there is no field {str(error)!r}" if is_missing else f"{type(error).__name__}: {error}"
                self._notify(f"Scorer {scorer.name!r} failed for input {result.index}: {why}.")
            return None
