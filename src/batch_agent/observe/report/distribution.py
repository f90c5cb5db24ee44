"""How durations are spread, in a bounded number of bins."""

import math
from array import array
from typing import Any

_FINE = 100
"""Bins for each power of ten: quantiles are right within a hundredth or so."""
_SHORTEST = 1e-4
_LAST = 10 * _FINE
_MOST_SHOWN = 32
_STEPS = (2, 5, 10, 20, 50, 100)


class Distribution:
    """Of seconds. What is shorter than a tenth of a millisecond counts as nothing."""

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
        self._bins[_bin(seconds)] += 1

    def quantile(self, share: float) -> float | None:
        """The duration that this share did not exceed; None of nothing."""
        if not self.count:
            return None
        wanted, so_far = share * self.count, 0
        for place, count in enumerate(self._bins):
            if count and so_far + count >= wanted:
                inside = _edge(place + (wanted - so_far) / count) if place else 0.0
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
        """Wider bins, from the shortest to the longest that there was."""
        first, last = _bin(self._least), _bin(self._most)
        step = next((step for step in _STEPS if last - first < step * _MOST_SHOWN), _STEPS[-1])
        places = range(first // step * step, last + 1, step)
        counts = [sum(self._bins[place : place + step]) for place in places]
        return [_short(_edge(place)) for place in (*places, places[-1] + step)], counts


def _bin(seconds: float) -> int:
    """Its number; 0 for next to nothing."""
    if seconds < _SHORTEST:
        return 0
    place = 1 + int(_FINE * math.log10(seconds / _SHORTEST))
    return place if place < _LAST else _LAST


def _edge(place: float) -> float:
    """Where a bin begins."""
    return float(_SHORTEST * 10 ** (max(place - 1, 0) / _FINE))


def _short(seconds: float | None) -> float | None:
    """As many digits as mean something."""
    return None if seconds is None else float(f"{seconds:.4g}")
