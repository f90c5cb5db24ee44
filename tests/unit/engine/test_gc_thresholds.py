"""The garbage collector is left as it was found."""

import gc
import itertools
from collections.abc import Iterator
from gc import get_freeze_count

import pytest

from batch_agent.engine import gc_thresholds
from batch_agent.engine.gc_thresholds import relaxed_gc


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = gc.get_threshold()
    monkeypatch.setattr(gc, "get_freeze_count", get_freeze_count)
    monkeypatch.setattr(gc_thresholds, "_runs", gc_thresholds._Runs())
    gc.unfreeze()  # what tests/conftest.py froze
    yield
    gc.freeze()
    gc.set_threshold(*before)


def test_the_gc_threshold_is_raised_during_runs_and_restored_after_the_last() -> None:
    gc.set_threshold(700, 10, 10)
    with relaxed_gc():
        assert gc.get_threshold() == (5_000, 1, 100)
        with relaxed_gc():
            pass
        assert gc.get_threshold() == (5_000, 1, 100)
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("chosen", [(0, 10, 10), (50_000, 5, 5)])
def test_a_higher_gc_threshold_of_the_program_is_kept(chosen: tuple[int, int, int]) -> None:
    gc.set_threshold(*chosen)
    with relaxed_gc():
        assert gc.get_threshold() == chosen
    assert gc.get_threshold() == chosen


def test_a_gc_threshold_set_during_a_run_is_kept() -> None:
    gc.set_threshold(700, 10, 10)
    with relaxed_gc():
        gc.set_threshold(123, 4, 5)
    assert gc.get_threshold() == (123, 4, 5)


def test_the_gc_threshold_is_restored_after_an_error() -> None:
    gc.set_threshold(700, 10, 10)
    with pytest.raises(KeyError), relaxed_gc():
        raise KeyError
    assert gc.get_threshold() == (700, 10, 10)


def test_the_end_of_a_run_triggers_no_full_collection() -> None:
    gc.set_threshold(700, 10, 10)
    with relaxed_gc():
        for _ in range(20):
            gc.collect(1)
        assert gc.get_count()[2] >= 20  # more than 10: overdue, by the setting that comes back
    assert gc.get_count()[2] < 10
    assert gc.get_freeze_count() == 0


def test_objects_that_python_freezes_at_its_start_do_not_count_as_frozen_by_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gc.set_threshold(700, 10, 10)
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 375)  # as Python 3.12
    with relaxed_gc():
        for _ in range(20):
            gc.collect(1)
    assert gc.get_count()[2] < 10


def test_objects_frozen_by_the_program_stay_frozen() -> None:
    gc.set_threshold(700, 10, 10)
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with relaxed_gc():
            pass
        assert gc.get_freeze_count() >= frozen * 0.9
    finally:
        gc.unfreeze()


def test_the_objects_that_the_program_froze_are_counted_once_and_not_after_every_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = itertools.count()
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 10**6 + next(counts))
    for _ in range(3):
        gc.set_threshold(700, 10, 10)
        with relaxed_gc():
            pass
    assert next(counts) == 1
