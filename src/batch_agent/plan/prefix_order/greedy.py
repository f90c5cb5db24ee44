"""Greedy grouping of many rows (the group that saves most first), and exhaustive search for few rows."""

import heapq
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import compress
from operator import eq
from typing import TypeAlias

from .table import Draft, Group, Table, complete_field_order, draft_in_given_order, sort_rows


class Search:
    """Search for the best arrangement of a small group.

    A set of rows is arranged as two consecutive parts, which share what the whole set agrees in. One part has the set's
    first row, and otherwise rows that agree with it in a field. The paper's exact algorithm only tries all rows with
    the same text as a part; that is suboptimal if a row would gain more elsewhere. Sets are bit masks of positions in
    `group.rows`."""

    def __init__(self, cells: Table, group: Group, effort: int) -> None:
        self._cells = cells
        self._group = group
        self._effort = effort
        self._best: dict[int, tuple[int, int]] = {}
        self._alike = [self._rows_alike(number) for number in group.fields]

    def run(self) -> int:
        """Runs the search, and returns the number of its steps."""
        before = self._effort
        self._saving((1 << len(self._group.rows)) - 1)
        return before - self._effort

    @property
    def is_done(self) -> bool:
        return self._effort > 0

    def _rows_alike(self, number: int) -> list[tuple[int, int]]:
        """For each row, the rows with the same text in a field, and the length of the text."""
        masks: Counter[int] = Counter()
        column = self._cells.columns[number]
        for position, row in enumerate(self._group.rows):
            masks[column[row]] |= 1 << position
        return [(masks[column[row]], self._cells.lengths[number][column[row]]) for row in self._group.rows]

    def _saving(self, rows: int) -> int:
        """Maximum that a set of rows can share. Stores the part with the first row that achieves it."""
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
        """The length in which all rows agree, and the rows that agree with the first one in some other field."""
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
        sets = [((1 << len(group.rows)) - 1, group.sort_key, group.head)]
        while sets:
            rows, sort_key, head = sets.pop()
            first = (rows & -rows).bit_length() - 1
            sort_key = (*sort_key, group.rows[first])
            if rows not in self._best:
                layout.sort_keys[group.rows[first]] = sort_key
                layout.fields[group.rows[first]] = complete_field_order(self._cells, head)
                continue
            head = (*head, *self._further_head(rows, first, set(head)))
            part = self._best[rows][1]
            sets += [(part, sort_key, head), (rows ^ part, sort_key, head)]

    def _further_head(self, rows: int, first: int, head: set[int]) -> Iterator[int]:
        for number, alike in zip(self._group.fields, self._alike, strict=True):
            mask, length = alike[first]
            if mask & rows == rows and length and number not in head:
                yield number


EFFORT = 100_000
"""Total steps of the exhaustive searches in small groups: 50 ms at most."""
_MIN_EFFORT = 1000
_MAX_SEARCHED_TABLE = 1000
"""Number of distinct rows above which the search in small groups gains a negligible amount."""
_MAX_SEARCHED_GROUP = 14
"""Maximum size of a searched group. Each row may triple the steps."""
_PASSES = 4
"""Number of times that each cell of a group is read: to count, collect and take."""
_CHECKS = 20_000_000
"""Number of cell reads after which the remaining rows are only sorted. Tables of hundreds of fields reach it."""

_Offer: TypeAlias = tuple[int, int, int, int]
"""The negated saving, a field, the first row with the text of the offer, and the length that a row saves."""


@dataclass(slots=True)
class _Budget:
    """Remaining cost of the arrangement, in steps instead of seconds, so that every machine has the same result."""

    effort: int
    checks: int


def draft_with_free_fields(cells: Table, effort: int) -> Draft:
    """Arranges groups, and groups within them. Equal rows are treated as one, because they share more than any
    others."""
    layout = draft_in_given_order(cells)
    first: dict[tuple[int, ...], int] = {}
    twins = [first.setdefault(values, row) for row, values in enumerate(cells.rows)]
    budget = _Budget(effort if len(first) <= _MAX_SEARCHED_TABLE else 0, _CHECKS)
    groups = [Group(list(first.values()), list(range(cells.width)))] if first else []
    while groups:
        groups += _arrange_group(cells, layout, groups.pop(), budget)
    for row, twin in enumerate(twins):
        layout.sort_keys[row], layout.fields[row] = (*layout.sort_keys[twin], row), layout.fields[twin]
    return layout


def _arrange_group(cells: Table, layout: Draft, group: Group, budget: _Budget) -> list[Group]:
    """Arranges a group, and returns the groups within it that remain to be arranged."""
    budget.checks -= _PASSES * len(group.rows) * len(group.fields)
    if budget.checks < 0:
        sort_rows(cells, layout, group)
        return []
    if len(group.rows) == 2:  # the most frequent case; the rest is slow
        group.head += tuple(_agreed(cells, group.rows, set(group.fields)))
        _settle_alone(cells, layout, group, group.rows)
        return []
    counts = _take_agreed(cells, group)
    if len(group.rows) <= _MAX_SEARCHED_GROUP and budget.effort > _MIN_EFFORT:
        # Half, because the parts of a group that took too much may be small enough.
        search = Search(cells, group, budget.effort // 2)
        budget.effort -= search.run()
        if search.is_done:
            search.settle(layout)
            return []
    reads = len(group.rows) * len(group.fields) ** 2
    sees_heads = reads < budget.checks
    budget.checks -= reads * sees_heads
    return _split(cells, layout, group, counts, sees_heads=sees_heads)


def _take_agreed(cells: Table, group: Group) -> dict[int, Counter[int]]:
    """Moves fields in which all rows agree to the head. Keeps fields in which some agree, with the number of rows per
    value."""
    counts: dict[int, Counter[int]] = {}
    head: list[int] = []
    for number in group.fields:
        column = cells.columns[number]
        count = Counter(map(column.__getitem__, group.rows))
        if len(count) == 1:
            head += [number] * (cells.lengths[number][column[group.rows[0]]] > 0)
        elif len(count) < len(group.rows):
            counts[number] = count
    group.head += tuple(head)
    group.fields = list(counts)
    return counts


def _split(
    cells: Table, layout: Draft, group: Group, counts: dict[int, Counter[int]], *, sees_heads: bool
) -> list[Group]:
    """Takes the rows with the text that saves most, then repeats this with the remaining rows.

    An outdated offer promises too much, and is made again for the remaining rows. The rows of an offer may all have the
    same text in a field that its field determines, as products are in a category. Then that larger group is taken: the
    smaller one is found within it, and nothing is lost."""
    holders = {number: _holders(cells, group, number, counts[number]) for number in counts}
    offers, determined = _offers(cells, holders, sees_heads=sees_heads)
    heapq.heapify(offers)
    left = dict.fromkeys(group.rows)
    parts = []
    while offers:
        saving, number, first, length = heapq.heappop(offers)
        values = cells.rows[first]
        now = (1 - counts[number][values[number]]) * length
        if now < 0 and now > saving:
            heapq.heappush(offers, (now, number, first, length))
        elif now < 0:
            widest = max(determined[number], key=lambda n: counts[n][values[n]])
            rows = [row for row in holders[widest][values[widest]] if row in left]
            _take(cells, rows, left, counts)
            parts.append(Group(rows, group.fields, (*group.sort_key, rows[0]), group.head))
    _settle_alone(cells, layout, group, left)
    return parts


def _settle_alone(cells: Table, layout: Draft, group: Group, rows: Iterable[int]) -> None:
    """Places rows that share only the group's head with other rows."""
    order = complete_field_order(cells, group.head)
    for row in rows:
        layout.sort_keys[row], layout.fields[row] = (*group.sort_key, row), order


def _holders(cells: Table, group: Group, number: int, count: Counter[int]) -> dict[int, list[int]]:
    """The rows that have each shareable text."""
    column, lengths = cells.columns[number], cells.lengths[number]
    holders: dict[int, list[int]] = {value: [] for value, rows in count.items() if rows > 1 and lengths[value]}
    for row in group.rows:
        if column[row] in holders:
            holders[column[row]].append(row)
    return holders


def _offers(
    cells: Table, holders: dict[int, dict[int, list[int]]], *, sees_heads: bool
) -> tuple[list[_Offer], dict[int, list[int]]]:
    """The savings of each text that several rows have, including everything else in which these rows agree.

    Also returns the fields that each field determines, itself first."""
    offers: list[_Offer] = []
    determined = {}
    for number, groups in holders.items():
        always = set(holders)
        for rows in groups.values():
            values = cells.rows[rows[0]]
            agreed = _agreed(cells, rows, holders) if sees_heads else [number]
            always.intersection_update(agreed)
            length = sum([cells.lengths[n][values[n]] for n in agreed])
            offers.append(((1 - len(rows)) * length, number, rows[0], length))
        determined[number] = [number, *sorted(always - {number})]
    return offers, determined


def _agreed(cells: Table, rows: list[int], fields: Container[int]) -> list[int]:
    """The fields in which the rows agree, except for those that are empty."""
    values = cells.rows[rows[0]]
    maybe = compress(range(cells.width), map(eq, values, cells.rows[rows[-1]]))
    agreed = [n for n in maybe if n in fields and cells.lengths[n][values[n]]]
    if len(rows) > 2:
        agreed = [n for n in agreed if not any(map(values[n].__ne__, map(cells.columns[n].__getitem__, rows)))]
    return agreed


def _take(cells: Table, rows: list[int], left: dict[int, None], counts: dict[int, Counter[int]]) -> None:
    for row in rows:
        del left[row]
    for number, count in counts.items():
        column = cells.columns[number]
        for row in rows:
            count[column[row]] -= 1
