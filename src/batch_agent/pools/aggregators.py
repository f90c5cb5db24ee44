"""Many responses made into one result, without asking anybody.

Responses that failed are left out, and `failure_report` tells of them. `include_failures` takes them in with the text
that they have: what there is of an answer that was cut off at max_tokens, and an empty one of any other."""

import json
import statistics as of_numbers
from collections import Counter
from collections.abc import Callable, Sequence
from math import isfinite, nan
from typing import Any

from ..core.errors import SpecError
from .response import Response
from .response_checks import nothing

Score = Callable[[Response], float]


def majority_vote(responses: Sequence[Response], include_failures: bool = False) -> tuple[str, float]:
    """The text that most have, and their share. Case and the space around a text do not count: the winner is in lower
    case. Of several with as many votes the one that comes first wins. ("", 0.0) if there are no votes."""
    votes = Counter(response.text.strip().lower() for response in _counted(responses, include_failures))
    if not votes:
        return "", 0.0
    winner = max(votes, key=lambda text: votes[text])
    return winner, votes[winner] / votes.total()


def concat(responses: Sequence[Response], separator: str = "\n", include_failures: bool = False) -> str:
    """Their texts, in their order."""
    return separator.join(response.text for response in _counted(responses, include_failures))


def best_of(responses: Sequence[Response], score_fn: Score, include_failures: bool = False) -> Response:
    """The one with the highest score, and of several the first. A failed response if there is none to choose."""
    counted = _counted(responses, include_failures)
    if counted:
        return max(counted, key=score_fn)
    if responses:
        return nothing(responses, "best_of", "response")
    return Response(0, error="best_of: there are no responses to choose from.")


def top_k(responses: Sequence[Response], k: int, score_fn: Score, include_failures: bool = False) -> list[Response]:
    """The `k` with the highest scores, the best first; those with the same score in their order. Raises SpecError for a
    negative `k`."""
    if k < 0:
        raise SpecError(f"k is {k}: top_k gives 0 responses or more.")
    return sorted(_counted(responses, include_failures), key=score_fn, reverse=True)[:k]


def structured_merge(
    responses: Sequence[Response], include_failures: bool = False
) -> tuple[list[Any], list[dict[str, Any]]]:
    """The values that the texts are as JSON, in one list: of arrays each of their values, everything else as it is. And
    for each text that is no JSON `{"index", "agent_index", "error"}`."""
    merged: list[Any] = []
    errors: list[dict[str, Any]] = []
    for response in _counted(responses, include_failures):
        try:
            value = json.loads(response.text)
        except (ValueError, RecursionError) as error:  # also a number of too many digits; and too many brackets
            errors.append(_named(response, str(error)))
        else:
            merged += value if isinstance(value, list) else [value]
    return merged, errors


def statistics(
    responses: Sequence[Response], extract_fn: Score | None = None, include_failures: bool = False
) -> dict[str, float]:
    """`mean`, `std` (of a sample; 0 for one number), `median`, `min` and `max` of the numbers that the texts are, or
    that `extract_fn` finds; `count` of them, and `skipped`: how many of the responses have none. All are nan if there
    is no number at all, for 0 would be one.

    A response has no number if its text is none, if `extract_fn` raises ValueError, and if it is infinite or nan."""
    counted = _counted(responses, include_failures)
    found = [_number(response, extract_fn or _as_number) for response in counted]
    numbers = [number for number in found if number is not None]
    counts = {"count": len(numbers), "skipped": len(found) - len(numbers)}
    if not numbers:
        return dict.fromkeys(("mean", "std", "median", "min", "max"), nan) | counts
    return {
        "mean": of_numbers.mean(numbers),
        "std": of_numbers.stdev(numbers) if len(numbers) > 1 else 0.0,
        "median": of_numbers.median(numbers),
        "min": min(numbers),
        "max": max(numbers),
    } | counts


def failure_report(responses: Sequence[Response]) -> dict[str, Any]:
    """`total`, `success_count`, `failure_count`, and `failures`: `{"index", "agent_index", "error"}` for each."""
    failures = [_named(response, response.error) for response in responses if not response.success]
    return {
        "total": len(responses),
        "success_count": len(responses) - len(failures),
        "failure_count": len(failures),
        "failures": failures,
    }


def _counted(responses: Sequence[Response], include_failures: bool) -> list[Response]:
    return [response for response in responses if include_failures or response.success]


def _named(response: Response, error: str | None) -> dict[str, Any]:
    return {"index": response.index, "agent_index": response.agent_index, "error": error}


def _as_number(response: Response) -> float:
    return float(response.text)


def _number(response: Response, extract: Score) -> float | None:
    try:
        number = float(extract(response))
    except (ValueError, OverflowError):
        return None
    return number if isfinite(number) else None
