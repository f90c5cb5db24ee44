"""How many agents did what, over time: exact, from when each began and ended to do it."""

ABSENT, WAITING, GENERATING, TOOLS, DONE = range(5)
"""What an agent does. Absent: it has not begun, or not in the process that goes on."""

_FINEST = 0.05
_MOST_BINS = 398
_COLUMNS = (("waiting", WAITING), ("generating", GENERATING), ("tools", TOOLS), ("done", DONE))


class Activity:
    """The time that agents spent on each thing, in bins. When a run outgrows them, each two become one that is twice
    as wide. A change counts for all of its bin that is left; so does, in a new bin, what is as it was."""

    def __init__(self) -> None:
        self._now = [0] * (DONE + 1)
        self._spent: list[list[float]] = [[] for _ in range(DONE + 1)]
        self._width = _FINEST
        self._until = 0.0

    def move(self, at: float, before: int, after: int) -> None:
        """An agent does something else from now on. Times never go back."""
        if at >= self._until:
            self._grow(at)
        left = self._until - at
        self._spent[before][-1] -= left
        self._spent[after][-1] += left
        self._now[before] -= 1
        self._now[after] += 1

    def as_json(self, at: float) -> dict[str, list[float]]:
        """As of this time, of which the last point tells. The others are averages over the time around them."""
        if at >= self._until:
            self._grow(at)
        width, bins = self._width, len(self._spent[0])
        covered = [width] * (bins - 1) + [at - (bins - 1) * width]
        shown = [place for place in range(bins) if covered[place] > width / 1000]
        found = {"at": [*(round(place * width + covered[place] / 2, 3) for place in shown), round(at, 3)]}
        for name, kind in _COLUMNS:
            spent = self._spent[kind].copy()
            spent[-1] -= self._now[kind] * (self._until - at)
            found[name] = [*(round(spent[place] / covered[place], 2) for place in shown), self._now[kind]]
        return found

    def _grow(self, at: float) -> None:
        while at >= self._until:
            if len(self._spent[0]) == _MOST_BINS:
                self._width *= 2
                for spent in self._spent:
                    spent[:] = map(sum, zip(spent[::2], spent[1::2], strict=True))
            for spent, number in zip(self._spent, self._now, strict=True):
                spent.append(number * self._width)
            self._until = len(self._spent[0]) * self._width
