"""Garbage collector settings during runs, which make many small objects that survive."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLDS = (5_000, 1, 100)
"""The collector runs after this many new objects instead of 700: with the default it takes a sixth of an agent's CPU
and finds nothing, since a run makes few cycles. Survivors are examined once more, up to 15,000 at a time, which blocks
the event loop for up to 10 ms; a third of all objects is only examined then."""
_MAX_FROZEN_BY_PYTHON = 1_000
"""Python 3.12 freezes some 400 objects of its own at start-up. A program that calls `gc.freeze` has thousands."""


class _Runs:
    """Number of active runs in this process, and the thresholds before the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._before: tuple[int, int, int] | None = None
        self._keeps_frozen = False
        """Whether the program keeps objects frozen. Determined once, because counting walks all of them."""

    def begin(self) -> None:
        with self._lock:
            self._count += 1
            now = gc.get_threshold()
            if self._before is None and 0 < now[0] < _THRESHOLDS[0]:  # respect a higher setting
                self._before = now
                gc.set_threshold(*_THRESHOLDS)

    def end(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0 and self._before is not None:
                before, self._before = self._before, None
                if gc.get_threshold() == _THRESHOLDS:
                    gc.set_threshold(*before)
                    self._reset_counters()

    def _reset_counters(self) -> None:
        """Moves all objects to the oldest generation, so that the restored thresholds do not trigger a full collection
        of all results at once."""
        self._keeps_frozen = self._keeps_frozen or gc.get_freeze_count() > _MAX_FROZEN_BY_PYTHON
        if not self._keeps_frozen:
            gc.freeze()
            gc.unfreeze()


_runs = _Runs()


@contextmanager
def relaxed_gc() -> Iterator[None]:
    """Raises the thresholds while any run is active, and restores them afterwards."""
    _runs.begin()
    try:
        yield
    finally:
        _runs.end()
