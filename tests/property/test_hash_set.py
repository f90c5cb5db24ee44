"""A HashSet is a set of numbers, a DigestSet one of texts."""

from hypothesis import given
from hypothesis import strategies as st

from batch_agent.plan.hash_set import DigestSet, DigestTable, HashSet

_NUMBERS = st.integers(1, 2**64 - 1)
_CLOSE = st.integers(1, 40).map(lambda number: number * 64)
"""Numbers of one segment, at neighbouring places."""


@given(st.lists(_NUMBERS | _CLOSE, max_size=300))
def test_a_number_is_new_the_first_time_and_never_again(numbers: list[int]) -> None:
    seen, known = HashSet(), set[int]()
    for number in numbers:
        assert (number in seen) is (number in known)
        assert seen.add(number) is (number not in known)
        known.add(number)
        assert number in seen
        assert len(seen) == len(known)


def test_it_grows() -> None:
    seen, numbers = HashSet(), [number * 0x9E3779B97F4A7C15 % 2**64 for number in range(1, 20_000)]
    assert [seen.add(number) for number in numbers] == [True] * len(numbers)
    assert [seen.add(number) for number in numbers] == [False] * len(numbers)


def test_zero_is_a_number_too() -> None:
    seen = HashSet()
    assert seen.add(0)
    assert not seen.add(0)


@given(st.lists(st.text(max_size=3), max_size=300))
def test_a_text_is_new_the_first_time_and_never_again(texts: list[str]) -> None:
    seen, known = DigestSet(), set[str]()
    for text in texts:
        assert seen.add(text) is (text not in known)
        known.add(text)


def test_a_set_of_texts_grows() -> None:
    seen = DigestSet()
    assert all(seen.add(str(number)) for number in range(20_000))
    assert not any(seen.add(str(number)) for number in range(20_000))


def test_texts_whose_first_64_bits_agree_are_told_apart() -> None:
    segment = DigestTable(16)
    assert segment.put(64, 1)
    assert segment.put(64, 2)
    assert not segment.put(64, 1)
    larger = segment.larger()
    assert not larger.put(64, 1)
    assert not larger.put(64, 2)
    assert larger.put(64, 3)


def test_a_text_with_a_lone_surrogate_is_a_text() -> None:
    seen = DigestSet()
    assert seen.add("\ud800")
    assert not seen.add("\ud800")
