"""Which rows come together, and which fields come first, in tables as people have them."""

import pytest

from batch_agent.plan.prefix_order import Arrangement, arrange, greedy, shared_prefix


def prompts(table: list[list[str]], found: Arrangement) -> list[str]:
    """The rows as they are asked."""
    return [" ".join(table[row][field] for field in found.fields[row]) for row in found.rows]


def test_questions_about_a_document_come_together_with_the_document_first() -> None:
    documents = ["D" * 500, "E" * 300]
    table = [[f"question {number}", documents[number % 2]] for number in range(20)]
    found = arrange(table)
    assert found.rows == (*range(0, 20, 2), *range(1, 20, 2))
    assert set(found.fields) == {(1, 0)}
    assert found.shared == 9 * 500 + 9 * 300


def test_without_free_fields_only_rows_move() -> None:
    table = [["x", "1"], ["y", "2"], ["x", "3"], ["y", "2"]]
    found = arrange(table, free_fields=False)
    assert prompts(table, found) == ["x 1", "x 3", "y 2", "y 2"]
    assert found.shared == 1 + 2


def test_in_given_fields_groups_keep_the_order_of_their_first_rows_at_every_depth() -> None:
    table = [["b", "2"], ["a", "1"], ["b", "1"], ["a", "2"], ["b", "2"]]
    assert prompts(table, arrange(table, free_fields=False)) == ["b 2", "b 2", "b 1", "a 1", "a 2"]


def test_a_field_that_all_rows_have_in_common_comes_first() -> None:
    table = [[f"item {number}", "the same instructions", str(number)] for number in range(3)]
    found = arrange(table)
    assert found.rows == (0, 1, 2)
    assert set(found.fields) == {(1, 0, 2)}
    assert found.shared == 2 * len("the same instructions")


@pytest.mark.parametrize("effort", [0, 100_000])
def test_fields_that_another_determines_go_with_it(effort: int) -> None:
    """A product's name and maker, both short, go before the longer country because they come together."""
    products = [("lamp", "acme"), ("desk", "bolt")]
    table = [["Iceland", *products[0]], ["Germany", *products[1]], ["Germany", *products[0]], ["Iceland", *products[1]]]
    found = arrange(table, effort=effort)
    assert prompts(table, found) == [
        "lamp acme Iceland",
        "lamp acme Germany",
        "desk bolt Germany",
        "desk bolt Iceland",
    ]


def test_a_category_goes_before_the_products_in_it() -> None:
    """The products save more, but within the category they still do, and the categories are shared as well."""
    table = [[f"a long name of product {n // 3:02}", f"category {n // 9}", f"review {n}"] for n in range(36)]
    found = arrange(table, effort=0)
    assert set(found.fields) == {(1, 0, 2)}
    assert found.shared == 32 * len("category 0") + 24 * len("a long name of product 00")


def test_rows_of_one_table_may_order_their_fields_differently() -> None:
    table = [["same left", "1"], ["2", "same right"], ["same left", "3"], ["4", "same right"]]
    found = arrange(table)
    assert prompts(table, found) == ["same left 1", "same left 3", "same right 2", "same right 4"]


def test_equal_rows_come_together() -> None:
    table = [["a", "b"], ["c", "d"], ["a", "b"], ["c", "d"], ["a", "b"]]
    found = arrange(table)
    assert found.rows == (0, 2, 4, 1, 3)
    assert found.shared == 6


def test_nothing_moves_where_nothing_is_shared() -> None:
    table = [[f"{row}-{field}" for field in range(3)] for row in range(30)]
    assert arrange(table) == Arrangement(tuple(range(30)), ((0, 1, 2),) * 30, 0, sum(len(c) for r in table for c in r))


def test_the_longer_of_two_texts_is_worth_more() -> None:
    table = [["x", "long"], ["x", "other"], ["y", "long"]]
    assert arrange(table).rows == (0, 2, 1)


def test_a_row_may_leave_a_group_that_it_fits_for_one_where_it_is_worth_more() -> None:
    """The last row has the `b` of three others and shares `bb` with the second, which the third row also has.

    Taking all rows with a text for a group, as the exact algorithm of the paper does, shares 6.
    """
    table = [["b", "bbb", "1"], ["a", "a", "bb"], ["b", "bbb", "bb"], ["b", "2", "aaa"], ["b", "3", "bb"]]
    found = arrange(table)
    assert found.shared == 7
    assert found.rows == (0, 2, 3, 1, 4)


@pytest.mark.parametrize("table", [[], [[]], [[], []], [["only"]], [["", ""], ["", ""]]])
def test_tables_with_nothing_to_arrange_stay(table: list[list[str]]) -> None:
    found = arrange(table)
    assert found.rows == tuple(range(len(table)))
    assert found.fields == tuple(tuple(range(len(row))) for row in table)
    assert found.shared == 0


def test_a_table_of_too_many_fields_is_only_sorted_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each field is the same in nearly all rows, so groups lie within groups, as deep as there are fields."""
    table = [["y" if (7 * row + field) % 15 else str(row) for field in range(30)] for row in range(40)]
    patient = arrange(table)
    monkeypatch.setattr(greedy, "_CHECKS", 15_000)
    hurried = arrange(table)
    assert sorted(hurried.rows) == list(range(40))
    assert arrange(table, free_fields=False).shared <= hurried.shared < patient.shared


def test_rows_of_different_widths_are_refused() -> None:
    with pytest.raises(ValueError, match="2 fields of the first row"):
        arrange([["a", "b"], ["c"]])


def test_a_prefix_ends_where_the_fields_or_the_texts_differ() -> None:
    table = [["aa", "bbb"], ["aa", "bbb"], ["aa", "c"]]
    assert shared_prefix(table, [0, 1, 2], [[0, 1], [0, 1], [0, 1]]) == 5 + 2
    assert shared_prefix(table, [0, 1, 2], [[0, 1], [1, 0], [0, 1]]) == 0
    assert shared_prefix(table, [0, 2], [[0, 1], [0, 1], [0, 1]]) == 2
