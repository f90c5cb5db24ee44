"""Exhaustive search for the best arrangement of few rows."""

from collections import Counter
from collections.abc import Iterator

from .table import Draft, Group, Table, whole_order


class Search:
    """Search for the best arrangement of a small group.

    A set of rows is arranged as two parts, one after the other, which share what the whole set agrees in. One part has
    the set's first row, and else rows that agree with it in a field. The paper's exact algorithm only tries all
    rows with the same text for a part; a row that would gain more elsewhere can make that less than the best.
    Sets are bit masks of positions in `group.rows`.
    """

    def __init__(self, cells: Table, group: Group, effort: int) -> None:
        self._cells = cells
        self._group = group
        self._effort = effort
        self._best: dict[int, tuple[int, int]] = {}
        self._alike = [self._rows_alike(number) for number in group.fields]

    def run(self) -> int:
        """Runs the search. Returns the steps that it took."""
        before = self._effort
        self._saving((1 << len(self._group.rows)) - 1)
        return before - self._effort

    @property
    def is_done(self) -> bool:
        return self._effort > 0

    def _rows_alike(self, number: int) -> list[tuple[int, int]]:
        """For each row, the rows with the same text in a field, and the text's length."""
        masks: Counter[int] = Counter()
        column = self._cells.columns[number]
        for position, row in enumerate(self._group.rows):
            masks[column[row]] |= 1 << position
        return [(masks[column[row]], self._cells.lengths[number][column[row]]) for row in self._group.rows]

    def _saving(self, rows: int) -> int:
        """Most that a set of rows can share. Stores the part with the first row that achieves it."""
        if rows in self._best:
            return self._best[rows][0]
        first = rows & -rows
        if rows == first or self._effort <= 0:
            return 0
        self._effort -= len(self._alike)
        agreed, pools = self._agreement(rows, first.bit_length() - 1)
        best, best_part = self._saving(rows ^ first), first
        for pool in pools:
            others = pool ^ first
            part = others
            while part and self._effort > 0:
                self._effort -= 1
                saving = self._saving(part | first) + self._saving(rows ^ first ^ part)
                if saving > best:
                    best, best_part = saving, part | first
                part = (part - 1) & others
        self._best[rows] = agreed + best, best_part
        return agreed + best

    def _agreement(self, rows: int, first: int) -> tuple[int, list[int]]:
        """The length that all rows agree in, and the rows that agree with the first in some other field."""
        agreed = 0
        pools = set()
        for alike in self._alike:
            mask, length = alike[first]
            if mask & rows == rows:
                agreed += length
            else:
                pools.add(mask & rows)
        return agreed, sorted(pool for pool in pools if not any(pool & other == pool != other for other in pools))

    def settle(self, layout: Draft) -> None:
        """Writes the best arrangement to the draft."""
        group = self._group
        sets = [((1 << len(group.rows)) - 1, group.place, group.head)]
        while sets:
            rows, place, head = sets.pop()
            first = (rows & -rows).bit_length() - 1
            place = (*place, group.rows[first])
            if rows not in self._best:
                layout.places[group.rows[first]] = place
                layout.fields[group.rows[first]] = whole_order(self._cells, head)
                continue
            head = (*head, *self._further_head(rows, first, set(head)))
            part = self._best[rows][1]
            sets += [(part, place, head), (rows ^ part, place, head)]

    def _further_head(self, rows: int, first: int, head: set[int]) -> Iterator[int]:
        for number, alike in zip(self._group.fields, self._alike, strict=True):
            mask, length = alike[first]
            if mask & rows == rows and length and number not in head:
                yield number
