"""Table with numbers for texts, and drafts of an order of its rows."""

from collections.abc import Sequence
from itertools import pairwise

from ...core.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Order of the rows of a table, and of the fields in each."""

    rows: tuple[int, ...]
    """Order in which the rows run."""
    fields: tuple[tuple[int, ...], ...]
    """Order of the fields of each row, by the row's number in the table."""
    shared: float
    """Length that rows share with the previous row."""
    total: float
    """The length of all cells."""


class Table:
    """Table with a number for each text, so that comparisons are cheap even for long texts."""

    def __init__(self, table: Sequence[Sequence[str]]) -> None:
        self.height = len(table)
        self.width = len(table[0]) if table else 0
        if any(len(row) != self.width for row in table):
            raise ValueError(f"Every row must have the {self.width} fields of the first row.")
        self.columns: list[list[int]] = []
        self.lengths: list[list[int]] = []
        for number in range(self.width):
            known: dict[str, int] = {}
            self.columns.append([known.setdefault(row[number], len(known)) for row in table])
            self.lengths.append(list(map(len, known)))
        self.rows: list[tuple[int, ...]] = list(zip(*self.columns, strict=True)) or [()] * self.height
        pairs = zip(self.columns, self.lengths, strict=True)
        self.total = sum(sum(map(lengths.__getitem__, column)) for column, lengths in pairs)

    def arrangement(self, layout: "Draft") -> Arrangement:
        rows = sorted(range(self.height), key=layout.sort_keys.__getitem__)
        return Arrangement(tuple(rows), tuple(layout.fields), self.shared(rows, layout.fields), self.total)

    def shared(self, rows: Sequence[int], fields: Sequence[Sequence[int]]) -> float:
        shared = 0
        for before, after in pairwise(rows):
            first, second = self.rows[before], self.rows[after]
            for one, other in zip(fields[before], fields[after], strict=True):
                if one != other or first[one] != second[one]:
                    break
                shared += self.lengths[one][first[one]]
        return shared


@dataclass(slots=True)
class Draft:
    """Arrangement in progress: the groups of each row, by their first rows, and the order of its fields.

    Sorted by `sort_keys`, groups stay together and come in the order of their first rows."""

    sort_keys: list[tuple[int, ...]]
    fields: list[tuple[int, ...]]


def draft_in_given_order(cells: Table) -> Draft:
    return Draft([(row,) for row in range(cells.height)], [tuple(range(cells.width))] * cells.height)


def draft_with_fixed_fields(cells: Table) -> Draft:
    layout = draft_in_given_order(cells)
    sort_rows(cells, layout, Group(list(range(cells.height)), list(range(cells.width))))
    return layout


@dataclass(slots=True)
class Group:
    """Rows that agree in the fields of `head`, and remain to be arranged by `fields`."""

    rows: list[int]
    fields: list[int]
    sort_key: tuple[int, ...] = ()
    head: tuple[int, ...] = ()


def sort_rows(cells: Table, layout: Draft, group: Group) -> None:
    """Arranges a group with one order of fields for all rows, so that rows with a common beginning become adjacent."""
    order = complete_field_order(cells, (*group.head, *group.fields))
    beginnings = [0] * len(group.rows)
    sort_keys = [group.sort_key] * len(group.rows)
    apart = 1
    for number in group.fields:
        column = cells.columns[number]
        known: dict[tuple[int, int], int] = {}
        keys = zip(beginnings, map(column.__getitem__, group.rows), strict=True)
        beginnings = [known.setdefault(key, len(known)) for key in keys]
        if len(known) == apart:
            continue
        apart = len(known)
        sort_keys = [(*sort_key, beginning) for sort_key, beginning in zip(sort_keys, beginnings, strict=True)]
        if apart == len(group.rows):
            break
    for row, sort_key in zip(group.rows, sort_keys, strict=True):
        layout.sort_keys[row], layout.fields[row] = (*sort_key, row), order


def complete_field_order(cells: Table, head: tuple[int, ...]) -> tuple[int, ...]:
    chosen = set(head)
    return (*head, *(number for number in range(cells.width) if number not in chosen))
