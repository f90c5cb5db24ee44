"""Thresholds of a cascade: which rows a proxy score decides and which ones a strong model, with a bound on the errors.

Rows with low scores are rejected, and rows with high scores accepted, without the strong model, which decides the rest.
With probability 1 - delta, precision and recall, compared with the strong model on all rows, are both at least the
target.

`propose` chooses the two regions from the labels so far, whatever their quality. Then an *audit* of unlabelled rows is
drawn from each region, with which `certify` tests both. Because the regions are chosen before the audit is drawn, each
has a single test, and needs no correction for a choice among thresholds. The bound on the remaining errors is exact for
draws without replacement (hypergeometric, as Clopper and Pearson's is for the binomial). Each region gets half of
delta. A region that fails its test is decided by the strong model."""

import math
from collections.abc import Mapping, Sequence

from ..core.fast_dataclass import dataclass

_CANDIDATES = 24
"""Number of region sizes to consider."""
_AUDITS = 10
"""Number of audit sizes to consider."""
_ENOUGH = 0.99
_RIDGE = 0.002
_NEWTON_STEPS = 30


@dataclass(frozen=True, slots=True)
class Region:
    """Rows at one end of the scores, and how many of them the strong model labels as an audit."""

    rows: tuple[int, ...]
    """Indices of rows without a label."""
    audit: int


@dataclass(frozen=True, slots=True)
class Regions:
    """The proposal of a pilot."""

    low: Region
    high: Region


@dataclass(frozen=True, slots=True)
class Certified:
    """Tells which of the two regions do not need the strong model."""

    low: bool
    high: bool


def upper_bound(size: int, drawn: int, found: int, delta: float) -> int:
    """The maximum number of marked rows among `size`, if `found` of `drawn` rows (without replacement) are marked.
    Holds with probability 1 - delta."""
    least, most = found, size - (drawn - found)
    while least < most:  # find the last number that is not implausible
        middle = (least + most + 1) // 2
        if _at_most(size, middle, drawn, found) > delta:
            least = middle
        else:
            most = middle - 1
    return least


def propose(scores: Sequence[float], known: Mapping[int, bool], *, labels: int, target: float, delta: float) -> Regions:
    """The regions that save the most rows, among those that an audit of `labels` rows can be expected to certify; empty
    if there are none. `known`: the labels so far, however their rows were chosen."""
    order = sorted((row for row in range(len(scores)) if row not in known), key=lambda row: (scores[row], row))
    chances = _chances(scores, known, order)
    permitted = (1 - target) * (math.fsum(chances) + sum(known.values()))
    upward = _candidates([scores[row] for row in order], chances)
    downward = _candidates([scores[row] for row in order[::-1]], [1 - chance for chance in reversed(chances)])
    low, high = (_best_sizes(each, permitted, delta / 2, labels) for each in (upward, downward))
    saved, one, two = 0.0, _NOTHING, _NOTHING
    for first in low:
        for second in high:
            fits = first.audit + second.audit <= labels and first.size + second.size <= len(order)
            if fits and first.saved + second.saved > saved:
                saved, one, two = first.saved + second.saved, first, second
    high_rows = order[len(order) - two.size :]
    return Regions(Region(tuple(order[: one.size]), one.audit), Region(tuple(high_rows), two.audit))


def certify(
    regions: Regions, wrong_low: int, wrong_high: int, *, accepted: int, target: float, delta: float
) -> Certified:
    """Tests whether each region meets the target. `wrong_low`, `wrong_high`: number of audited rows that the strong
    model accepted in the low region and rejected in the high one. `accepted`: number of rows outside of both that it
    accepted."""
    low, high = regions.low, regions.high
    kept = accepted + len(high.rows)
    errors = upper_bound(len(high.rows), high.audit, wrong_high, delta / 2)
    is_high = errors <= (1 - target) * kept
    right = kept - errors if is_high else accepted
    missed = upper_bound(len(low.rows), low.audit, wrong_low, delta / 2)
    return Certified(missed * target <= right * (1 - target), is_high)


def _at_most(size: int, marked: int, drawn: int, found: int) -> float:
    """The probability of at most `found` marked rows among the drawn ones."""
    total = _log_choose(size, drawn)
    first = max(0, drawn - (size - marked))
    terms = (
        _log_choose(marked, each) + _log_choose(size - marked, drawn - each) - total
        for each in range(first, min(found, marked, drawn) + 1)
    )
    return math.fsum(map(math.exp, terms))


def _log_choose(total: int, chosen: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)


def _chances(scores: Sequence[float], known: Mapping[int, bool], order: Sequence[int]) -> list[float]:
    """The estimated acceptance probability of each row in `order`: a logistic curve over the ranks of the scores."""
    ranks = _ranks(scores)
    bins: dict[float, tuple[int, int]] = {}
    for row, label in known.items():
        at = round(ranks[row] * 8) / 8
        count, accepted = bins.get(at, (0, 0))
        bins[at] = count + 1, accepted + label
    offset, slope = _logistic([(at, *counts) for at, counts in sorted(bins.items())])
    return [_sigmoid(offset + slope * ranks[row]) for row in order]


def _ranks(scores: Sequence[float]) -> list[float]:
    """The log-odds of each score's rank. Equal scores have equal ranks."""
    first: dict[float, int] = {}
    count: dict[float, int] = {}
    for rank, score in enumerate(sorted(scores)):
        first.setdefault(score, rank)
        count[score] = count.get(score, 0) + 1
    total = len(scores)
    ranks = {score: (first[score] + count[score] / 2) / total for score in first}
    return [math.log(ranks[score] / (1 - ranks[score])) if ranks[score] < 1 else 0.0 for score in scores]


def _logistic(bins: Sequence[tuple[float, int, int]]) -> tuple[float, float]:
    """Offset and slope by Newton's method, with a small ridge so that separable labels have a finite slope. A slope
    below 0 would mean that low scores are accepted. It is replaced by 0, the slope of an uninformative score."""
    total, accepted = sum(count for _, count, _ in bins), sum(each for *_, each in bins)
    share = (accepted + 0.5) / (total + 1)
    level = math.log(share / (1 - share))
    offset, slope = level, 0.0
    for _ in range(_NEWTON_STEPS):
        a, b, c = _RIDGE, 0.0, _RIDGE
        up, along = -_RIDGE * offset, -_RIDGE * slope
        for x, count, ones in bins:
            chance = _sigmoid(offset + slope * x)
            weight, rest = count * chance * (1 - chance), ones - count * chance
            a, b, c = a + weight, b + weight * x, c + weight * x * x
            up, along = up + rest, along + rest * x
        determinant = a * c - b * b
        step, turn = (c * up - b * along) / determinant, (a * along - b * up) / determinant
        length = max(1.0, abs(step), abs(turn))  # a full step may overshoot
        offset, slope = offset + step / length, slope + turn / length
    return (offset, slope) if slope > 0 else (level, 0.0)


def _sigmoid(value: float) -> float:
    if value < 0:
        return math.exp(value) / (1 + math.exp(value))
    return 1 / (1 + math.exp(-value))


def _candidates(scores: Sequence[float], errors: Sequence[float]) -> list[tuple[int, float]]:
    """Sizes of regions that begin with the first row, each with its expected errors. Rows with equal scores are never
    separated."""
    ends: set[int] = set()
    for number in range(1, _CANDIDATES + 1):
        end = round(number / _CANDIDATES * len(scores))
        while end and end < len(scores) and scores[end] == scores[end - 1]:
            end -= 1
        ends.add(end)
    found: list[tuple[int, float]] = []
    total, begin = 0.0, 0
    for end in sorted(ends - {0}):
        total += math.fsum(errors[begin:end])
        begin = end
        found.append((end, total))
    return found


@dataclass(frozen=True, slots=True)
class _Choice:
    """A size of a region and of its audit, with the expected number of saved rows."""

    size: int
    audit: int
    saved: float


_NOTHING = _Choice(0, 0, 0.0)


def _best_sizes(candidates: Sequence[tuple[int, float]], permitted: float, delta: float, labels: int) -> list[_Choice]:
    """For several audit sizes, the region size that is expected to save the most rows."""
    audits = sorted({round(labels * share / _AUDITS) for share in range(1, _AUDITS + 1)} - {0})
    choices = [_NOTHING]
    for audit in audits:
        options = (
            _Choice(size, audit, size * _chance_to_pass(size, errors, audit, permitted, delta) - audit)
            for size, errors in candidates
            if size > audit
        )
        choices.append(max(options, key=lambda choice: choice.saved, default=_NOTHING))
    return choices


def _chance_to_pass(size: int, errors: float, audit: int, permitted: float, delta: float) -> float:
    """The probability, by Poisson's distribution, that the audit finds so few errors that their bound is permitted."""
    marked = math.floor(permitted) + 1
    if marked > size:
        return 1.0
    expected = audit * errors / size
    found = max(0, audit - (size - marked))  # with this many marked rows, fewer cannot be found
    drawn_so = math.exp(
        _log_choose(marked, found) + _log_choose(size - marked, audit - found) - _log_choose(size, audit)
    )
    at_most, chance = drawn_so, math.fsum(_poisson(expected, each) for each in range(found))
    while at_most <= delta and chance < _ENOUGH and found < audit:
        chance += _poisson(expected, found)
        found += 1
        drawn_so *= (marked - found + 1) * (audit - found + 1) / (found * max(1, size - marked - audit + found))
        at_most += drawn_so
    return chance


def _poisson(expected: float, count: int) -> float:
    return math.exp(count * math.log(expected) - expected - math.lgamma(count + 1)) if expected else float(not count)
