"""Distribution of durations, in a bounded number of logarithmic bins."""

import math
from array import array
from typing import Any

_BINS_PER_DECADE = 100
"""Quantiles are accurate to about one percent."""
_SHORTEST = 1e-4
_LAST = 10 * _BINS_PER_DECADE
_MAX_SHOWN = 32
_STEPS = (2, 5, 10, 20, 50, 100)


class Distribution:
    """Distribution of seconds. Durations below 0.1 ms count as zero."""

    def __init__(self) -> None:
        self.count = 0
        self._least = math.inf
        self._most = 0.0
        self._bins = array("Q", bytes(8 * (_LAST + 1)))

    def add(self, seconds: float) -> None:
        self.count += 1
        if seconds > self._most:
            self._most = seconds
        if seconds < self._least:
            self._least = seconds
        self._bins[0 if seconds < _SHORTEST else _bin(seconds)] += 1

    def quantile(self, share: float) -> float | None:
        """The duration that this share of the values does not exceed; None if empty."""
        if not self.count:
            return None
        wanted, so_far = share * self.count, 0
        for number, count in enumerate(self._bins):
            if count and so_far + count >= wanted:
                inside = _edge(number + (wanted - so_far) / count) if number else 0.0
                return min(max(inside, self._least), self._most)
            so_far += count
        return self._most

    def as_json(self) -> dict[str, Any] | None:
        if not self.count:
            return None
        quantiles = {f"p{round(share * 100)}": _short(self.quantile(share)) for share in (0.5, 0.9, 0.99)}
        edges, counts = self._shown()
        return {"count": self.count, **quantiles, "max": _short(self._most), "edges": edges, "counts": counts}

    def _shown(self) -> tuple[list[float | None], list[int]]:
        """Edges and counts of wider bins, from the shortest to the longest duration."""
        first, last = _bin(self._least), _bin(self._most)
        step = next((step for step in _STEPS if last - first < step * _MAX_SHOWN), _STEPS[-1])
        bins = range(first // step * step, last + 1, step)
        counts = [sum(self._bins[number : number + step]) for number in bins]
        return [_short(_edge(number)) for number in (*bins, bins[-1] + step)], counts


def _bin(seconds: float) -> int:
    """Number of the bin of a duration; 0 for durations below the minimum."""
    if seconds < _SHORTEST:
        return 0
    number = 1 + int(_BINS_PER_DECADE * math.log10(seconds / _SHORTEST))
    return number if number < _LAST else _LAST


def _edge(number: float) -> float:
    """Lower edge of a bin."""
    return float(_SHORTEST * 10 ** (max(number - 1, 0) / _BINS_PER_DECADE))


def _short(seconds: float | None) -> float | None:
    """Rounds to four significant digits."""
    return None if seconds is None else float(f"{seconds:.4g}")
