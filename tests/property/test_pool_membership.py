"""Which endpoints belong to a pool, whatever its sources list and in whatever order."""

from hypothesis import given
from hypothesis import strategies as st

from batch_agent.backends.endpoints.pool_membership import MembershipChange, PoolMembership

NAMES = st.frozensets(st.sampled_from("abcdef"), max_size=5)
PATIENCE = st.lists(st.integers(1, 3), min_size=1, max_size=3)
LISTINGS = st.lists(st.tuples(st.integers(0, 2), NAMES), max_size=30)


@given(PATIENCE, LISTINGS)
def test_an_endpoint_belongs_while_a_source_has_listed_it_within_its_patience(
    patience: list[int], listings: list[tuple[int, frozenset[str]]]
) -> None:
    membership: PoolMembership[str, int] = PoolMembership(dict(enumerate(patience)))
    history: dict[int, list[frozenset[str]]] = {source: [] for source in range(len(patience))}
    members = frozenset[str]()
    for source, names in ((source % len(patience), names) for source, names in listings):
        change = membership.on_listing(source, sorted(names))
        if names:
            history[source].append(names)
        recent = [history[each][-patience[each] :] for each in history]
        expected = frozenset[str]().union(*(names for found in recent for names in found))
        assert set(membership.members) == expected
        assert not set(change.joined) & set(change.removed)
        assert (members | set(change.joined)) - set(change.removed) == expected
        assert not set(change.joined) & members
        assert set(change.removed) <= members
        members = expected
        assert members or not any(history.values())  # never emptied


@given(PATIENCE, LISTINGS, st.integers(0, 2))
def test_the_same_listing_again_and_an_empty_one_change_nothing_that_patience_did_not(
    patience: list[int], listings: list[tuple[int, frozenset[str]]], again: int
) -> None:
    membership: PoolMembership[str, int] = PoolMembership(dict(enumerate(patience)))
    for source, names in listings:
        membership.on_listing(source % len(patience), names)
    before = membership.members
    assert membership.on_listing(again % len(patience), ()) == MembershipChange()
    assert membership.members == before
    for _ in range(4):  # longer than any patience
        membership.on_listing(again % len(patience), "xyz")
    assert membership.on_listing(again % len(patience), "xyz") == MembershipChange()


def test_newcomers_are_in_the_order_of_the_listing() -> None:
    membership: PoolMembership[str, int] = PoolMembership({0: 1})
    assert membership.on_listing(0, ["b", "a", "b", "c"]).joined == ("b", "a", "c")
    assert membership.on_listing(0, ["c", "d"]) == MembershipChange(("d",), ("b", "a"))
