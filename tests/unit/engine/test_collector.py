"""The garbage collector is left as it was found."""

import gc
from collections.abc import Iterator

import pytest

from batch_agent.engine.collector import rarer_collections


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_it_looks_less_often_while_any_run_is_under_way_and_as_before_after_the_last() -> None:
    gc.set_threshold(700, 10, 10)
    with rarer_collections():
        assert gc.get_threshold() == (2_000, 5, 100)
        with rarer_collections():
            pass
        assert gc.get_threshold() == (2_000, 5, 100)
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("chosen", [(0, 10, 10), (50_000, 5, 5)])
def test_a_program_that_has_its_own_setting_keeps_it(chosen: tuple[int, int, int]) -> None:
    gc.set_threshold(*chosen)
    with rarer_collections():
        assert gc.get_threshold() == chosen
    assert gc.get_threshold() == chosen


def test_a_setting_that_is_made_during_a_run_stays() -> None:
    gc.set_threshold(700, 10, 10)
    with rarer_collections():
        gc.set_threshold(123, 4, 5)
    assert gc.get_threshold() == (123, 4, 5)


def test_an_error_puts_it_back_too() -> None:
    gc.set_threshold(700, 10, 10)
    with pytest.raises(KeyError), rarer_collections():
        raise KeyError
    assert gc.get_threshold() == (700, 10, 10)
