"""Samples of one input: groups of results, their majority answer, and the best result."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any

from ..core.errors import SpecError
from ..core.results import AgentResult
from .scorer import NoSuchField, field_of, text_of

Group = Sequence[AgentResult]


def groups_of(results: Iterable[AgentResult]) -> list[list[AgentResult]]:
    """Results grouped by input, and by model if there are several, in order of their first result."""
    groups: dict[tuple[int, str | None], list[AgentResult]] = {}
    for result in results:
        groups.setdefault((result.index, result.model), []).append(result)
    return list(groups.values())


def votes_in(group: Group, field: str | None) -> Counter[str]:
    """The number of times that each answer was given, as text. Failed agents do not vote."""
    return Counter(vote for result in group if (vote := answer_text(result, field)) is not None)


def majorities(results: Sequence[AgentResult], field: str | None) -> list[AgentResult]:
    """The majority of each input. Raises SpecError if no answer has the field."""
    groups = groups_of(results)
    if field is not None and any(result.ok for result in results) and not any(map(votes_in, groups, repeat(field))):
        raise SpecError(f"No answer has a field {field!r}.")
    return [majority_of(group, field) for group in groups]


def majority_of(group: Group, field: str | None) -> AgentResult:
    """The first result with the most frequent answer; in a tie, the answer that was given first. A group without an
    answer is represented by its first result."""
    votes = votes_in(group, field)
    if not votes:
        return group[0]
    [(winner, _)] = votes.most_common(1)
    return next(result for result in group if answer_text(result, field) == winner)


def best_of(group: Group, score: str | Callable[[AgentResult], Any]) -> AgentResult:
    """The result with the highest score; the first one in a tie and in a group without scores."""
    scored = [(value, result) for result in group if (value := _value(result, score)) is not None]
    return max(scored, key=lambda each: each[0])[1] if scored else group[0]


def answer_text(result: AgentResult, field: str | None) -> str | None:
    """The answer, or a field of it, as text; None for a failed agent or an answer without the field."""
    if not result.ok:
        return None
    try:
        answer = result.output if field is None else field_of(result.output, field)
    except NoSuchField:
        return None
    return answer.strip() if isinstance(answer, str) else text_of(answer)


def _value(result: AgentResult, score: str | Callable[[AgentResult], Any]) -> Any:
    if callable(score):
        return score(result) if result.ok else None
    if score not in result.scores:
        known = ", ".join(result.scores) or "none: pass score= to the run"
        raise SpecError(f"The results have no score {score!r}. They have: {known}.")
    return result.scores[score]
