"""An arrangement of a table is one of its rows and fields, shares what it says, and is never worse than none."""

from collections.abc import Sequence
from itertools import pairwise, permutations

from hypothesis import given
from hypothesis import strategies as st

from batch_agent.plan.prefix_order import arrange, shared_prefix

Table = list[list[str]]


def tables(rows: int, fields: int) -> st.SearchStrategy[Table]:
    """Few texts, so that many are the same, and of different lengths."""
    texts = st.sampled_from(["", "a", "bb", "cc", "ddddd", "eeeeeeeeee"])
    return st.integers(0, fields).flatmap(
        lambda width: st.lists(st.lists(texts, min_size=width, max_size=width), max_size=rows)
    )


TABLES = tables(rows=20, fields=5)
EFFORTS = st.sampled_from([0, 2000, 100_000])


@given(TABLES, st.booleans(), EFFORTS)
def test_an_arrangement_has_every_row_and_field_once_and_the_reported_sharing(
    table: Table, free_fields: bool, effort: int
) -> None:
    width = len(table[0]) if table else 0
    found = arrange(table, free_fields=free_fields, effort=effort)
    assert sorted(found.rows) == list(range(len(table)))
    assert len(found.fields) == len(table)
    assert all(sorted(order) == list(range(width)) for order in found.fields)
    assert free_fields or all(order == tuple(range(width)) for order in found.fields)
    assert found.total == sum(len(text) for row in table for text in row)
    assert found.shared == counted(table, found.rows, found.fields)
    assert found.shared == shared_prefix(table, found.rows, found.fields)


@given(TABLES, EFFORTS)
def test_free_fields_share_at_least_as_much_as_fixed_fields_and_those_as_the_table(table: Table, effort: int) -> None:
    width = len(table[0]) if table else 0
    as_it_is = counted(table, range(len(table)), [range(width)] * len(table))
    given = arrange(table, free_fields=False)
    free = arrange(table, effort=effort)
    assert as_it_is <= given.shared <= free.shared
    if free.shared == as_it_is:
        assert free.rows == tuple(range(len(table)))
        assert set(free.fields) <= {tuple(range(width))}


@given(TABLES)
def test_with_fixed_fields_rows_with_equal_beginnings_are_grouped_in_order(table: Table) -> None:
    rows = arrange(table, free_fields=False).rows
    if rows != tuple(range(len(table))):
        assert rows == tuple(walked(table, list(range(len(table))), 0))


@given(TABLES)
def test_the_arrangement_of_a_table_is_deterministic(table: Table) -> None:
    assert arrange(table) == arrange([["".join(list(text)) for text in row] for row in table])


@given(tables(rows=4, fields=3))
def test_nothing_shares_more_than_the_arrangement_of_a_small_table(table: Table) -> None:
    assert arrange(table).shared == most_shared(table)


@given(tables(rows=5, fields=3))
def test_with_fixed_fields_no_order_of_rows_shares_more(table: Table) -> None:
    width = len(table[0]) if table else 0
    fields = [range(width)] * len(table)
    most = max(counted(table, rows, fields) for rows in permutations(range(len(table))))
    assert arrange(table, free_fields=False).shared == most


def counted(table: Table, rows: Sequence[int], fields: Sequence[Sequence[int]]) -> int:
    """The shared length, from the texts."""
    return sum(common(table, a, fields[a], b, fields[b]) for a, b in pairwise(rows))


def common(table: Table, a: int, by_a: Sequence[int], b: int, by_b: Sequence[int]) -> int:
    length = 0
    for one, other in zip(by_a, by_b, strict=True):
        if one != other or table[a][one] != table[b][one]:
            return length
        length += len(table[a][one])
    return length


def walked(table: Table, rows: list[int], depth: int) -> list[int]:
    if not rows or depth == len(table[0]):
        return rows
    groups: dict[str, list[int]] = {}
    for row in rows:
        groups.setdefault(table[row][depth], []).append(row)
    return [row for group in groups.values() for row in walked(table, group, depth + 1)]


def most_shared(table: Table) -> int:
    """Tries all orders of the rows, and in each all orders of every row's fields."""
    width = len(table[0]) if table else 0
    orders = list(permutations(range(width)))
    most = 0
    for rows in permutations(range(len(table))):
        best = dict.fromkeys(orders, 0)
        for a, b in pairwise(rows):
            best = {
                by_b: max(shared + common(table, a, by_a, b, by_b) for by_a, shared in best.items()) for by_b in orders
            }
        most = max(most, *best.values())
    return most
