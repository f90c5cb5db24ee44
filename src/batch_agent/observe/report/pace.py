"""How fast agents get done."""

from collections import deque

_WINDOW = 30.0
_TOO_SHORT = 0.1


class Pace:
    """Of the last half minute."""

    def __init__(self) -> None:
        self._since = 0.0
        self._done: deque[tuple[int, int]] = deque()
        """Seconds in which agents got done, and how many."""

    def begins_process(self, at: float) -> None:
        self._since = at
        self._done.clear()

    def is_done(self, at: float) -> None:
        second = int(at)
        if self._done and self._done[-1][0] == second:
            self._done[-1] = (second, self._done[-1][1] + 1)
        else:
            self._done.append((second, 1))
            while self._done[0][0] < at - _WINDOW - 1:
                self._done.popleft()

    def per_second(self, at: float) -> float | None:
        """None of a process that has only begun."""
        first = int(at - _WINDOW)
        seconds = at - max(self._since, first)
        if seconds < _TOO_SHORT:
            return None
        return sum(count for second, count in self._done if second >= first) / seconds
