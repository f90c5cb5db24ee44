"""Number of agents in each state over time, computed exactly from their state changes."""

ABSENT, WAITING, GENERATING, TOOLS, DONE = range(5)
"""States of an agent. Absent: it has not started, or not in the current process."""

_FINEST = 0.05
_MAX_BINS = 398
_COLUMNS = (("waiting", WAITING), ("generating", GENERATING), ("tools", TOOLS), ("done", DONE))


class Activity:
    """Time that agents spent in each state, in bins. When a run outgrows them, pairs of bins are merged. A state
    counts for the rest of its bin, and for all of a new bin; a change corrects that."""

    def __init__(self) -> None:
        self._now = [0] * (DONE + 1)
        self._spent: list[list[float]] = [[] for _ in range(DONE + 1)]
        self._width = _FINEST
        self._until = 0.0

    def move(self, at: float, before: int, after: int) -> None:
        """Changes the state of an agent. Times must not decrease."""
        if at >= self._until:
            self._grow(at)
        left = self._until - at
        self._spent[before][-1] -= left
        self._spent[after][-1] += left
        self._now[before] -= 1
        self._now[after] += 1

    def as_json(self, at: float) -> dict[str, list[float]]:
        """Series up to this time. The last point is the current state; the others are averages of their bins."""
        if at >= self._until:
            self._grow(at)
        width, bins = self._width, len(self._spent[0])
        covered = [width] * (bins - 1) + [at - (bins - 1) * width]
        shown = [number for number in range(bins) if covered[number] > width / 1000]
        found = {"at": [*(round(number * width + covered[number] / 2, 3) for number in shown), round(at, 3)]}
        for name, kind in _COLUMNS:
            spent = self._spent[kind].copy()
            spent[-1] -= self._now[kind] * (self._until - at)
            found[name] = [*(round(spent[number] / covered[number], 2) for number in shown), self._now[kind]]
        return found

    def _grow(self, at: float) -> None:
        while at >= self._until:
            if len(self._spent[0]) == _MAX_BINS:
                self._width *= 2
                for spent in self._spent:
                    spent[:] = map(sum, zip(spent[::2], spent[1::2], strict=True))
            for spent, agents in zip(self._spent, self._now, strict=True):
                spent.append(agents * self._width)
            self._until = len(self._spent[0]) * self._width
