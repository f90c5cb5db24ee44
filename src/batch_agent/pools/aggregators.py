"""Aggregators: functions that turn many responses into one result, without calling a model.

Failed responses are left out; `failure_report` lists them. With `include_failures`, they count with their text: the
beginning of an answer that was cut off at max_tokens, otherwise an empty string."""

import json
import statistics as stats
from collections import Counter
from collections.abc import Callable, Sequence
from math import isfinite, nan
from typing import Any

from ..core.errors import SpecError
from .response import Response
from .response_checks import failed_response

Score = Callable[[Response], float]


def majority_vote(responses: Sequence[Response], include_failures: bool = False) -> tuple[str, float]:
    """The most frequent text, and its share of the votes. Ignores case and surrounding whitespace: the winner is in
    lower case. In a tie, the first text wins. Returns ("", 0.0) if there are no votes."""
    votes = Counter(response.text.strip().lower() for response in _included(responses, include_failures))
    if not votes:
        return "", 0.0
    winner = max(votes, key=lambda text: votes[text])
    return winner, votes[winner] / votes.total()


def concat(responses: Sequence[Response], separator: str = "\n", include_failures: bool = False) -> str:
    """The texts, joined in order."""
    return separator.join(response.text for response in _included(responses, include_failures))


def best_of(responses: Sequence[Response], score_fn: Score, include_failures: bool = False) -> Response:
    """The response with the highest score; in a tie, the first. A failed response if there is none to choose from."""
    included = _included(responses, include_failures)
    if included:
        return max(included, key=score_fn)
    if responses:
        return failed_response(responses, "best_of", "response")
    return Response(0, error="best_of: there are no responses to choose from.")


def top_k(responses: Sequence[Response], k: int, score_fn: Score, include_failures: bool = False) -> list[Response]:
    """The `k` responses with the highest scores, best first; ties keep their order. Raises SpecError if `k` is
    negative."""
    if k < 0:
        raise SpecError(f"k must be >= 0; got {k}.")
    return sorted(_included(responses, include_failures), key=score_fn, reverse=True)[:k]


def structured_merge(
    responses: Sequence[Response], include_failures: bool = False
) -> tuple[list[Any], list[dict[str, Any]]]:
    """The values of all texts parsed as JSON, in one list: arrays are flattened, other values are appended. Also
    returns `{"index", "agent_index", "error"}` for each text that is not valid JSON."""
    merged: list[Any] = []
    errors: list[dict[str, Any]] = []
    for response in _included(responses, include_failures):
        try:
            value = json.loads(response.text)
        except (
            ValueError,
            RecursionError,
        ) as error:  # too many digits; nested too deeply
            errors.append(_failure(response, str(error)))
        else:
            merged += value if isinstance(value, list) else [value]
    return merged, errors


def statistics(
    responses: Sequence[Response], extract_fn: Score | None = None, include_failures: bool = False
) -> dict[str, float]:
    """Statistics of the texts as numbers, or of the numbers that `extract_fn` returns: `mean`, `std` (of a sample; 0
    for one number), `median`, `min` and `max`; `count` of the numbers, and `skipped`, the responses without one.
    Without any number, the values are nan, because 0 would look like a result.

    A response has no number if its text is not a number, if `extract_fn` raises ValueError, or if the number is
    infinite or nan."""
    included = _included(responses, include_failures)
    found = [_number(response, extract_fn or _as_number) for response in included]
    numbers = [number for number in found if number is not None]
    counts = {"count": len(numbers), "skipped": len(found) - len(numbers)}
    if not numbers:
        return dict.fromkeys(("mean", "std", "median", "min", "max"), nan) | counts
    return {
        "mean": stats.mean(numbers),
        "std": stats.stdev(numbers) if len(numbers) > 1 else 0.0,
        "median": stats.median(numbers),
        "min": min(numbers),
        "max": max(numbers),
    } | counts


def failure_report(responses: Sequence[Response]) -> dict[str, Any]:
    """`total`, `success_count`, `failure_count`, and `failures`: `{"index", "agent_index", "error"}` for each."""
    failures = [_failure(response, response.error) for response in responses if not response.success]
    return {
        "total": len(responses),
        "success_count": len(responses) - len(failures),
        "failure_count": len(failures),
        "failures": failures,
    }


def _included(responses: Sequence[Response], include_failures: bool) -> list[Response]:
    return [response for response in responses if include_failures or response.success]


def _failure(response: Response, error: str | None) -> dict[str, Any]:
    return {"index": response.index, "agent_index": response.agent_index, "error": error}


def _as_number(response: Response) -> float:
    return float(response.text)


def _number(response: Response, extract: Score) -> float | None:
    try:
        number = float(extract(response))
    except (ValueError, OverflowError):
        return None
    return number if isfinite(number) else None
