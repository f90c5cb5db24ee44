"""Blocking: no pair that is similar enough is missed, and none is listed twice."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_agent.plan.candidate_pairs import TooManyPairs, clusters, pairs_by_key, similar_pairs, tokens_of

TEXTS = st.lists(st.text("abc ", max_size=12), max_size=12)


@settings(max_examples=80)
@given(TEXTS, st.sampled_from([0.1, 0.3, 0.5, 0.8, 1.0]))
def test_the_pairs_are_those_of_a_comparison_of_all_with_all(texts: list[str], similarity: float) -> None:
    def is_similar(one: str, two: str) -> bool:
        first, second = tokens_of(one), tokens_of(two)
        return bool(first & second) and len(first & second) / len(first | second) >= similarity

    expected = [(a, b) for a, b in combinations(range(len(texts)), 2) if is_similar(texts[a], texts[b])]
    assert similar_pairs(texts, similarity, 1000) == expected
    split = len(texts) // 2
    across = [(a, b) for a, b in expected if a < split <= b]
    assert similar_pairs(texts, similarity, len(across), split) == across


@settings(max_examples=60)
@given(st.lists(st.lists(st.integers(0, 3), max_size=3), max_size=10))
def test_items_that_share_a_key_are_a_pair(keys: list[list[int]]) -> None:
    expected = [(a, b) for a, b in combinations(range(len(keys)), 2) if set(keys[a]) & set(keys[b])]
    assert pairs_by_key(keys, 1000) == expected
    split = len(keys) // 2
    assert pairs_by_key(keys, 1000, split) == [(a, b) for a, b in expected if a < split <= b]


def test_too_many_pairs_are_refused() -> None:
    with pytest.raises(TooManyPairs):
        similar_pairs(["same"] * 20, 0.5, 100)
    with pytest.raises(TooManyPairs):
        pairs_by_key([["same"]] * 20, 100)


@settings(max_examples=60)
@given(st.integers(1, 12), st.data())
def test_clusters_hold_each_item_once_and_what_pairs_connect(count: int, data: st.DataObject) -> None:
    item = st.integers(0, count - 1)
    pairs = data.draw(st.lists(st.tuples(item, item), max_size=12))
    groups = clusters(count, pairs)
    assert sorted(each for group in groups for each in group) == list(range(count))
    group_of = {each: number for number, group in enumerate(groups) for each in group}
    assert all(group_of[one] == group_of[two] for one, two in pairs)
    assert [group[0] for group in groups] == sorted(group[0] for group in groups)
    assert len(groups) >= count - len(pairs)


def test_spellings_that_differ_a_little_are_similar() -> None:
    assert similar_pairs(["ACME Corporation", "Acme Corporation, Ltd", "Banana Inc"], 0.5, 10) == [(0, 1)]
