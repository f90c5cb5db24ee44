"""References of residents as a tree: what prompts share is counted once."""

from hypothesis import given
from hypothesis import strategies as st

from batch_agent.schedule.kv_ledger import KvLedger
from batch_agent.schedule.reference_tree import Path, ReferenceTree, SizedReference, tokens_of

SIZES = {"A": 100.0, "B": 50.0, "C": 25.0}


def path(headings: str) -> Path:
    return tuple(SizedReference(each, SIZES[each]) for each in headings)


paths = st.lists(st.sampled_from(["", "A", "AB", "ABC", "B", "BC", "AC"]), max_size=12)


@given(paths)
def test_a_reference_counts_once_for_all_that_have_the_same_ones_before_it(given_paths: list[str]) -> None:
    tree = ReferenceTree()
    for headings in given_paths:
        missing = tree.missing(path(headings))
        assert tree.add(path(headings)) == missing
    distinct = {headings[: at + 1] for headings in given_paths for at in range(len(headings))}
    assert tree.tokens == sum(SIZES[prefix[-1]] for prefix in distinct)
    assert tree.tokens + tree.shared_tokens == sum(tokens_of(path(headings)) for headings in given_paths)
    for headings in given_paths:
        tree.remove(path(headings))
    assert (tree.tokens, tree.shared_tokens) == (0, 0)


def ledger(capacity: int) -> KvLedger:
    return KvLedger(capacity, shared_tokens=100)


def admit(kept: KvLedger, agent: str, headings: str = "", own: float = 10) -> bool:
    kept.register(agent, own)
    if headings:
        kept.on_references(agent, path(headings))
    return kept.admit(agent, 0.0)


def test_residents_that_share_a_reference_leave_room_for_others() -> None:
    sharing, own = ledger(1000), ledger(1000)
    admitted = [sum(admit(kept, f"{at}", "AB") for at in range(50)) for kept in (sharing,)]
    for at in range(50):
        own.register(f"{at}", 160)
    alone = sum(own.admit(f"{at}", 0.0) for at in range(50))
    assert admitted[0] > 4 * alone


def test_a_resident_that_leaves_gives_back_what_only_it_had() -> None:
    kept = ledger(10_000)
    assert admit(kept, "one", "AB")
    assert admit(kept, "two", "AC")
    assert kept.references.tokens == 175
    kept.remove("one")
    assert kept.references.tokens == 125
    kept.remove("two")
    assert kept.references.tokens == 0


def test_what_stands_behind_a_new_reference_is_expected_to_miss_the_cache() -> None:
    kept = ledger(100_000)
    for at in range(40):
        assert admit(kept, f"{at}")
        kept.on_usage(f"{at}", 500, 0, 10, has_waiters=True)
    kept.on_usage("0", 510, 500, 10, has_waiters=True)  # the server reports its hits
    limit = kept.limit
    for at in range(40):
        kept.on_references(f"{at}", path("A"))
        kept.on_usage(f"{at}", 620, 200, 10, has_waiters=True)
    assert kept.limit == limit
    assert kept.cache_misses.total == 0


def test_the_size_of_a_context_includes_its_references() -> None:
    kept = ledger(100_000)
    assert admit(kept, "one", "AB")
    kept.on_usage("one", 300, 0, 20, has_waiters=False)
    assert kept.tokens("one") == 320
    assert kept.reserved_tokens >= 320


def test_the_references_that_agents_are_expected_to_add_are_reserved() -> None:
    kept = ledger(100_000)
    assert admit(kept, "one")
    kept.on_references("one", path("A"))
    before = kept.reserved_tokens
    assert admit(kept, "two")
    assert kept.reserved_tokens >= before + SIZES["A"]
