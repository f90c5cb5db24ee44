"""Python's garbage collector while a run makes many small objects that stay."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLDS = (2_000, 5, 100)
"""New objects after which the collector looks, instead of 700: it takes a sixth of an agent's CPU otherwise, to find
nothing. A run makes no cycles worth looking for that often. Those that stay are looked at once more, 10,000 at a time,
for 10 ms: the loop stands still meanwhile."""


class _Runs:
    """How many runs are under way in this process, and what the collector was set to before the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._before: tuple[int, int, int] | None = None

    def begin(self) -> None:
        with self._lock:
            self._count += 1
            now = gc.get_threshold()
            if self._before is None and 0 < now[0] < _THRESHOLDS[0]:  # a program that has set it higher knows better
                self._before = now
                gc.set_threshold(*_THRESHOLDS)

    def end(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0 and self._before is not None:
                before, self._before = self._before, None
                if gc.get_threshold() == _THRESHOLDS:
                    gc.set_threshold(*before)
                    _count_anew()


def _count_anew() -> None:
    """So that the collector does not look at all results at once because by its own counting that is overdue. They
    become old objects, as those that it looked at."""
    if gc.get_freeze_count() == 0:  # else somebody means them to stay frozen
        gc.freeze()
        gc.unfreeze()


_runs = _Runs()


@contextmanager
def relaxed_gc() -> Iterator[None]:
    """As long as any run is under way; what was set before comes back after."""
    _runs.begin()
    try:
        yield
    finally:
        _runs.end()
