"""How fast a count grows."""

from collections import deque

_BETWEEN = 0.5
"""Seconds between two marks, at least."""
_WINDOW = 60.0
_ENOUGH = 5


class Growth:
    """Over the last minute; over all of it where too little has happened in the last minute to tell."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, float]] = deque()
        self._first: tuple[float, float] | None = None
        self._last = (0.0, 0.0)

    def mark(self, seconds: float, count: float) -> None:
        """So many there are by now. Times must not go back."""
        self._last = (seconds, count)
        if self._first is None:
            self._first = self._last
        if not self._marks or seconds - self._marks[-1][0] >= _BETWEEN:
            self._marks.append(self._last)
            while seconds - self._marks[0][0] > _WINDOW:
                self._marks.popleft()

    @property
    def rate(self) -> float:
        """For a second."""
        if self._first is None:
            return 0.0
        now, count = self._last
        then, before = self._marks[0]
        if count - before < _ENOUGH:
            then, before = self._first
        return (count - before) / (now - then) if now > then else 0.0
