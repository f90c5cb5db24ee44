"""Places of items: in the order of their positions, without gaps, and told as soon as they can be known."""

import random
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from batch_agent.flows.item_order import ItemOrder, Position

Tree = list["Tree"]
"""What became of a position: nothing, or so many positions in its place."""


def shapes(depth: int) -> st.SearchStrategy[Tree]:
    children: st.SearchStrategy[Tree] = st.just([])
    for _ in range(depth):
        children = st.lists(children, max_size=4)
    return children


def positions(tree: Tree, depth: int, here: Position = ()) -> Iterator[Position]:
    """All that are at the bottom, in order."""
    if not depth:
        yield here
        return
    for number, child in enumerate(tree):
        yield from positions(child, depth - 1, (*here, number))


def expansions(tree: Tree, depth: int, here: Position = ()) -> Iterator[tuple[Position, int]]:
    if here:
        yield here, len(tree)
    if depth > 1:
        for number, child in enumerate(tree):
            yield from expansions(child, depth - 1, (*here, number))


trees = st.integers(1, 4).flatmap(lambda depth: st.tuples(st.just(depth), shapes(depth)))


@given(trees, st.integers(0, 1000))
def test_indices_follow_the_order_of_positions_not_of_messages(tree: tuple[int, Tree], seed: int) -> None:
    depth, shape = tree
    places = ItemOrder(depth - 1)
    heard = list(expansions(shape, depth))
    random.Random(seed).shuffle(heard)
    all_of_them = list(positions(shape, depth))
    rank = {position: place for place, position in enumerate(all_of_them)}
    for position, count in heard:
        known = {each: places.index(each) for each in all_of_them}
        assert all(place in (None, rank[each]) for each, place in known.items())
        places.expanded(position, count)
    assert [places.index(each) for each in all_of_them] == list(range(len(all_of_them)))
    assert places.total(len(shape)) == len(all_of_them)


@given(trees)
def test_an_index_is_known_once_all_earlier_positions_are(tree: tuple[int, Tree]) -> None:
    depth, shape = tree
    places = ItemOrder(depth - 1)
    heard = sorted(expansions(shape, depth))
    for number, position in enumerate(positions(shape, depth)):
        while heard and heard[0][0] <= position:
            places.expanded(*heard.pop(0))
        assert places.index(position) == number


def test_without_expansions_every_position_is_known_at_once() -> None:
    places = ItemOrder(0)
    assert [places.index((number,)) for number in (5, 0, 10**9)] == [5, 0, 10**9]
    assert places.total(7) == 7


def test_an_unknown_item_delays_the_positions_after_it() -> None:
    places = ItemOrder(1)
    places.expanded((1,), 3)
    assert places.index((1, 0)) is None
    assert places.total(2) is None
    places.expanded((0,), 2)
    assert places.index((1, 2)) == 4
    assert places.total(2) == 5
