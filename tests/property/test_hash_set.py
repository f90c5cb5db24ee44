"""A HashSet is a set of numbers."""

from hypothesis import given
from hypothesis import strategies as st

from batch_agent.plan.hash_set import HashSet

_NUMBERS = st.integers(1, 2**64 - 1)
_CLOSE = st.integers(1, 40).map(lambda number: number * 64)
"""Numbers of one segment, at neighbouring places."""


@given(st.lists(_NUMBERS | _CLOSE, max_size=300))
def test_a_number_is_new_the_first_time_and_never_again(numbers: list[int]) -> None:
    seen, known = HashSet(), set[int]()
    for number in numbers:
        assert seen.add(number) is (number not in known)
        known.add(number)


def test_it_grows() -> None:
    seen, numbers = HashSet(), [number * 0x9E3779B97F4A7C15 % 2**64 for number in range(1, 20_000)]
    assert [seen.add(number) for number in numbers] == [True] * len(numbers)
    assert [seen.add(number) for number in numbers] == [False] * len(numbers)


def test_zero_is_a_number_too() -> None:
    seen = HashSet()
    assert seen.add(0)
    assert not seen.add(0)
