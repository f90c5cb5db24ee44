"""The garbage collector is left as it was found."""

import gc
from collections.abc import Iterator

import pytest

from batch_agent.engine.gc_tuning import relaxed_gc


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_it_looks_less_often_while_any_run_is_under_way_and_as_before_after_the_last() -> None:
    gc.set_threshold(700, 10, 10)
    with relaxed_gc():
        assert gc.get_threshold() == (2_000, 5, 100)
        with relaxed_gc():
            pass
        assert gc.get_threshold() == (2_000, 5, 100)
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("chosen", [(0, 10, 10), (50_000, 5, 5)])
def test_a_program_that_has_its_own_setting_keeps_it(chosen: tuple[int, int, int]) -> None:
    gc.set_threshold(*chosen)
    with relaxed_gc():
        assert gc.get_threshold() == chosen
    assert gc.get_threshold() == chosen


def test_a_setting_that_is_made_during_a_run_stays() -> None:
    gc.set_threshold(700, 10, 10)
    with relaxed_gc():
        gc.set_threshold(123, 4, 5)
    assert gc.get_threshold() == (123, 4, 5)


def test_an_error_puts_it_back_too() -> None:
    gc.set_threshold(700, 10, 10)
    with pytest.raises(KeyError), relaxed_gc():
        raise KeyError
    assert gc.get_threshold() == (700, 10, 10)


def test_the_end_of_a_run_does_not_make_it_look_at_everything_at_once() -> None:
    gc.set_threshold(700, 10, 10)
    with relaxed_gc():
        for _ in range(20):
            gc.collect(1)
        assert gc.get_count()[2] >= 20  # more than 10: overdue, by the setting that comes back
    assert gc.get_count()[2] < 10
    assert gc.get_freeze_count() == 0


def test_what_somebody_froze_stays_frozen() -> None:
    gc.set_threshold(700, 10, 10)
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with relaxed_gc():
            pass
        assert gc.get_freeze_count() >= frozen * 0.9
    finally:
        gc.unfreeze()
