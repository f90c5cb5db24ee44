"""95 % intervals and tests: Wilson's for proportions, Student's t for means, McNemar's for paired answers."""

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist, fmean, stdev

_LEVEL = 0.95
_Z = NormalDist().inv_cdf((1 + _LEVEL) / 2)

Interval = tuple[float, float]


def wilson(right: float, total: int) -> Interval | None:
    """Interval of a proportion, by Wilson's score; None without observations."""
    if not total:
        return None
    share, squared = right / total, _Z * _Z
    middle = (share + squared / (2 * total)) / (1 + squared / total)
    half = _Z * math.sqrt(share * (1 - share) / total + squared / (4 * total * total)) / (1 + squared / total)
    return max(0.0, middle - half), min(1.0, middle + half)


def t_interval(values: Sequence[float]) -> Interval | None:
    """Interval of a mean, by Student's t; None for fewer than two observations."""
    if len(values) < 2:
        return None
    mean, half = fmean(values), t_quantile((1 + _LEVEL) / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return mean - half, mean + half


def paired_interval(both: int, lost: int, won: int, neither: int) -> Interval | None:
    """Interval of the difference between two proportions over the same inputs, by Newcombe's score method; None without
    inputs. The first run was right for `both + lost` of them, the second for `both + won`."""
    total = both + lost + won + neither
    before, after = wilson(both + lost, total), wilson(both + won, total)
    if before is None or after is None:
        return None
    one, two = (both + lost) / total, (both + won) / total
    phi = _correlation(both, lost, won, neither)

    def distance(a: float, b: float) -> float:
        return math.sqrt(max(0.0, a * a - 2 * phi * a * b + b * b))

    low = two - one - distance(two - after[0], before[1] - one)
    return low, two - one + distance(after[1] - two, one - before[0])


def _correlation(both: int, lost: int, won: int, neither: int) -> float:
    """Correlation between the answers of two runs, with a continuity correction if it is positive."""
    margins = (both + lost) * (won + neither) * (both + won) * (lost + neither)
    if not margins:
        return 0.0
    product = both * neither - lost * won
    corrected = max(product - (both + lost + won + neither) / 2, 0.0) if product > 0 else product
    return corrected / math.sqrt(margins)


def t_test(differences: Sequence[float]) -> float | None:
    """Probability of a mean at least as far from 0 if there were no difference, by a paired t test."""
    if len(differences) < 2:
        return None
    spread = stdev(differences)
    if not spread:
        return 1.0 if not differences[0] else 0.0
    t = fmean(differences) / (spread / math.sqrt(len(differences)))
    return 2 * (1 - t_distribution(abs(t), len(differences) - 1))


def mcnemar(lost: int, won: int) -> float:
    """Probability of changes at least as one-sided if both runs were equally good, by McNemar's exact test. `lost`:
    inputs that were right before and are wrong now. `won`: the reverse."""
    fewer, more = min(lost, won), max(lost, won)
    return 1.0 if not more else min(1.0, 2 * _incomplete_beta(more, fewer + 1, 0.5))  # a binomial tail


def t_quantile(probability: float, freedom: int) -> float:
    """Value that a t-distributed variable stays below with this probability, which is at least 0.5."""
    low, high = 0.0, 2.0
    while t_distribution(high, freedom) < probability:
        high *= 2
    return _bisected(lambda t: t_distribution(t, freedom) < probability, low, high)


def t_distribution(t: float, freedom: int) -> float:
    """Probability that a t-distributed variable is below `t`, which is at least 0."""
    return 1 - _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t)) / 2


def _bisected(is_below: Callable[[float], bool], low: float, high: float) -> float:
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return high


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularized incomplete beta function, by its continued fraction."""
    if x <= 0 or x >= 1:
        return min(1.0, max(0.0, x))
    logs = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    if x < (a + 1) / (a + b + 2):
        return math.exp(logs) * _continued_fraction(a, b, x) / a
    return 1 - math.exp(logs) * _continued_fraction(b, a, 1 - x) / b


def _continued_fraction(a: float, b: float, x: float) -> float:
    """Continued fraction by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1 / _not_zero(1 - (a + b) * x / (a + 1), tiny)
    value = d
    for m in range(1, 1000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for each in (even, odd):
            d, c = 1 / _not_zero(1 + each * d, tiny), _not_zero(1 + each / c, tiny)
            value *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return value


def _not_zero(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny
