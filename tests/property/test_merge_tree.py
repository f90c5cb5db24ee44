"""Merging many results into one: the same merges in any order of arrival, and every result in exactly one place."""

import random
from collections import Counter
from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from batch_agent.plan.merge_tree import Merge, MergeTree, TreeEntry

ROOM = 100
Shape = tuple[tuple[tuple[str, ...], bool], ...]


def play(
    sizes: Sequence[int | None], seed: int, *, answer: int = 20, expect_at: int = 0, overflows: int = ROOM
) -> tuple[list[Merge], list[str]]:
    """All merges, and the leaves of the last one's story, with results and answers in an order of chance. `expect_at`:
    after how many results their number is known. Merges that cannot be made smaller are answered all the same."""
    chance = random.Random(seed)
    tree = MergeTree(ROOM)
    order = list(range(len(sizes)))
    chance.shuffle(order)
    under_way: list[Merge] = []
    made: list[Merge] = []
    final: list[str] = []

    def answered() -> None:
        merge = under_way.pop(chance.randrange(len(under_way)))
        if sum(entry.size for entry in merge.entries) > overflows and (halves := tree.overflowed(merge)):
            under_way.extend(halves)
            return
        made.append(merge)
        story = [leaf for entry in merge.entries for leaf in entry.value]
        if merge.is_last:
            final.extend(story)
        under_way.extend(tree.merged(merge, story, answer))

    for count, place in enumerate(order):
        if count == expect_at:
            under_way += tree.expect(len(sizes))
        size = sizes[place]
        under_way += tree.put(place, None if size is None else TreeEntry([str(place)], size))
        while under_way and chance.random() < 0.5:
            answered()
    if expect_at >= len(sizes):
        under_way += tree.expect(len(sizes))
    for _ in range(10 * len(sizes) + 10):
        if not under_way:
            break
        answered()
    assert not under_way
    assert sum(merge.is_last for merge in made) == any(size is not None for size in sizes)
    return made, final


def shape(merges: list[Merge]) -> Counter[Shape]:
    return Counter(
        (*((tuple(entry.value), entry.is_merged) for entry in merge.entries), ((), merge.is_last)) for merge in merges
    )


sizes = st.lists(st.none() | st.integers(1, 90), max_size=70)


@given(sizes, st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 70), st.integers(0, 70))
@example([60], 0, 1, 0, 1)
@example([60, 60, 60], 0, 1, 0, 3)
def test_merges_do_not_depend_on_arrival_order_or_on_when_the_count_is_known(
    given_sizes: list[int | None], one: int, other: int, known_at: int, known_later: int
) -> None:
    first, _ = play(given_sizes, one, expect_at=known_at)
    second, _ = play(given_sizes, other, expect_at=known_later)
    assert shape(first) == shape(second)


@given(sizes, st.integers(0, 1000))
def test_every_result_reaches_the_last_merge_once_and_in_order(given_sizes: list[int | None], seed: int) -> None:
    merges, final = play(given_sizes, seed)
    assert final == [str(place) for place, size in enumerate(given_sizes) if size is not None]
    assert sum(merge.is_last for merge in merges) == (1 if final else 0)
    last = [merge for merge in merges if merge.is_last]
    assert [merge.leaves for merge in last] == ([len(final)] if final else [])


@given(sizes, st.integers(0, 1000))
def test_every_merge_fits_the_size_limit(given_sizes: list[int | None], seed: int) -> None:
    merges, _ = play(given_sizes, seed)
    assert all(sum(entry.size for entry in merge.entries) <= ROOM for merge in merges)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=200), st.integers(0, 1000))
def test_few_merges_are_made(given_sizes: list[int], seed: int) -> None:
    merges, _ = play(given_sizes, seed, answer=5)
    fewest = sum(given_sizes) / ROOM
    assert len(merges) <= 3 * fewest + 2


@given(st.lists(st.integers(1, 90), min_size=1, max_size=40), st.integers(0, 1000), st.integers(0, 1000))
def test_a_merge_that_is_too_large_is_halved_until_it_fits(given_sizes: list[int], one: int, other: int) -> None:
    first, final = play(given_sizes, one, overflows=50)
    second, _ = play(given_sizes, other, overflows=50)
    assert final == [str(place) for place in range(len(given_sizes))]
    assert shape(first) == shape(second)


@given(
    sizes,
    st.integers(1, 200),
    st.integers(10, 120),
    st.integers(0, 1000),
    st.integers(0, 1000),
)
def test_merging_ends_the_same_way_for_answers_of_any_length(
    given_sizes: list[int | None], answer: int, overflows: int, one: int, other: int
) -> None:
    first, final = play(given_sizes, one, answer=answer, overflows=overflows)
    second, _ = play(given_sizes, other, answer=answer, overflows=overflows)
    assert final == [str(place) for place, size in enumerate(given_sizes) if size is not None]
    assert all(merge.entries for merge in first)
    assert shape(first) == shape(second)


@given(st.lists(st.integers(1, 90), min_size=2, max_size=40), st.integers(1, 100), st.integers(0, 1000))
def test_only_answers_that_are_too_long_by_themselves_fail(given_sizes: list[int], answer: int, seed: int) -> None:
    merges, _ = play(given_sizes, seed, answer=answer, overflows=10**9)
    for merge in merges:
        is_too_long = sum(entry.size for entry in merge.entries) > ROOM
        assert not is_too_long or all(entry.is_merged for entry in merge.entries)


def test_a_merged_answer_is_not_merged_again_because_of_a_long_neighbor() -> None:
    tree = MergeTree(ROOM)
    tree.expect(4)
    under_way = [merge for place in range(4) for merge in tree.put(place, TreeEntry([place], 40))]
    answered = [merge for merge in under_way for merge in tree.merged(merge, "long", 60)]
    assert [[entry.value for entry in merge.entries] for merge in answered] == [["long", "long"]]
    assert tree.overflowed(answered[0]) == []


def test_a_late_result_delays_only_its_neighbors() -> None:
    tree = MergeTree(ROOM)
    tree.expect(64)
    ready = [merge for place in range(1, 64) for merge in tree.put(place, TreeEntry([place], 20))]
    begun = {leaf for merge in ready for entry in merge.entries for leaf in entry.value}
    assert begun == set(range(4, 64))


@given(st.integers(1, 10), st.integers(0, 1000), st.integers(0, 10))
def test_results_that_all_fit_are_merged_once(count: int, seed: int, known_at: int) -> None:
    merges, final = play([10] * count, seed, expect_at=known_at)
    assert [merge.is_last for merge in merges] == [True]
    assert len(final) == count


def test_without_results_nothing_is_merged() -> None:
    assert MergeTree(ROOM).expect(0) == []
