"""Tasks laid out for the prefix cache: what all agents share first, then what some do, then what is an agent's own."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

from ..core.fast_dataclass import dataclass
from ..core.json import replace_surrogates
from .prefix_order import arrange
from .template import BadInput, Template, block

_WORTH_HOISTING = 200
"""Characters. Of less, a mention of it would be no shorter."""

_WORTH_A_MARK = 1024
"""Characters that a group shares. Services cache up to a mark, and nothing that is shorter than this."""

_Piece = str | int
"""A text, or the number of a cell."""


@dataclass(frozen=True, slots=True)
class PrefixSharing:
    """What the tasks of a run share, in characters."""

    rows: int
    total: int
    """Of all tasks together."""
    shared: int
    """Of these: what a task has in common with another one, which need not be computed again."""
    groups: int
    """Sets of tasks that share more than all do."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the task of each input is put together, and in which order the inputs are asked."""

    template: Template
    lead: str
    """The text with which every task begins."""
    constants: tuple[tuple[int, str], ...]
    """Cells that are the same in all inputs, and have their place in the lead."""
    pieces: tuple[_Piece, ...]
    """What follows the lead."""
    orders: tuple[tuple[_Piece, ...], ...] = ()
    """The same by row, where each may have its own."""
    shared: tuple[int, ...] = ()
    """By row: characters at the beginning of its task that all of its group share, or all tasks."""
    asking: tuple[int, ...] | None = None
    """The rows in the order in which they are asked; None: as they come."""
    sharing: PrefixSharing | None = None
    """None where the inputs were not known beforehand."""

    @property
    def varying(self) -> tuple[str, ...]:
        """The names of the fields that differ between inputs, in the order of the task that is asked first."""
        names = self.template.cell_names
        pieces = self.orders[self.asking[0]] if self.orders and self.asking else self.pieces
        return tuple(dict.fromkeys(names[piece] for piece in pieces if isinstance(piece, int)))

    def task(self, row: int, value: Any) -> tuple[str, int]:
        """The task of an input, and how many of its characters others share. Raises BadInput."""
        cells = self.template.cells(value)
        if any(cells[cell] != text for cell, text in self.constants):
            return self.template.render(value), 0  # not the input that the layout was made for
        pieces = self.orders[row] if row < len(self.orders) else self.pieces  # lists may have grown since
        parts = [piece if isinstance(piece, str) else cells[piece] for piece in pieces]
        text = replace_surrogates(self.lead + "".join(parts))
        return text, min(len(text), self.shared[row] if row < len(self.shared) else len(self.lead))


def as_they_come(template: Template) -> Layout:
    """For inputs that are not known beforehand."""
    pieces = _numbered(template)
    at = next((at for at, piece in enumerate(pieces) if isinstance(piece, int)), len(pieces))
    return Layout(template, _joined(pieces[:at]), (), tuple(pieces[at:]))


def lay_out(template: Template, rows: Sequence[Any], *, hoist: bool = True, reorder: bool = True) -> Layout:
    """For inputs that are all there. What does not fit the task is left out of account; its own turn says so."""
    table = [_cells(template, row) for row in rows]
    known = [at for at, cells in enumerate(table) if cells is not None]
    if len(known) < 2:
        return as_they_come(template)
    good = [cells for cells in table if cells is not None]
    constant = _constant(good) if hoist else {}
    lead, pieces = _lead(template, constant)
    laid_out = Layout(template, lead, tuple(constant.items()), pieces)
    if not template.is_free and _is_sharing_over(pieces, good):
        return _without_groups(laid_out, good)
    return _ordered(laid_out, good, known, len(table), reorder=reorder)


def _cells(template: Template, value: Any) -> list[str] | None:
    try:
        return template.cells(value)
    except BadInput:
        return None


def _constant(table: Sequence[list[str]]) -> dict[int, str]:
    """The cells that are the same in all rows."""
    return {
        cell: text for cell, text in enumerate(table[0]) if all(row[cell] is text or row[cell] == text for row in table)
    }


def _lead(template: Template, constant: dict[int, str]) -> tuple[str, tuple[_Piece, ...]]:
    """What every task begins with, and what follows. In a text, a constant moves only if it stands behind something
    that varies, and is long enough; where it stood, a mention of it is left."""
    pieces = _numbered(template)
    if template.is_free:
        first = [piece for piece in pieces if isinstance(piece, str) or piece in constant]
        return _joined(_filled(first, constant)), tuple(piece for piece in pieces if piece not in first)
    at = next((at for at, piece in enumerate(pieces) if isinstance(piece, int) and piece not in constant), len(pieces))
    behind = {
        piece for piece in pieces[at:] if isinstance(piece, int) and len(constant.get(piece, "")) >= _WORTH_HOISTING
    }
    names = template.cell_names
    hoisted = {names[cell]: constant[cell] for cell in sorted(behind & template.certain_cells)}
    mentions = {
        cell: f"(see {name} above)"
        for cell, name in enumerate(names)
        if name in hoisted and constant.get(cell) == hoisted[name]
    }
    filled = _filled(pieces, {**constant, **mentions})
    blocks = [f"{block(name, text)}\n" for name, text in hoisted.items()]
    return _joined([*blocks, *filled[:at]]), tuple(filled[at:])


def _is_sharing_over(pieces: tuple[_Piece, ...], table: list[list[str]]) -> bool:
    """Whether the first thing behind the lead is another one in each row, as it nearly always is."""
    first = next((piece for piece in pieces if isinstance(piece, int)), None)
    return first is not None and len({row[first] for row in table}) == len(table)


def _without_groups(layout: Layout, table: list[list[str]]) -> Layout:
    lead, rows = len(layout.lead), len(table)
    texts = sum(len(piece) for piece in layout.pieces if isinstance(piece, str))
    cells = [piece for piece in layout.pieces if isinstance(piece, int)]
    total = rows * (lead + texts) + sum(len(row[cell]) for row in table for cell in cells)
    return replace(layout, sharing=PrefixSharing(rows, total, (rows - 1) * lead, 0))


def _ordered(layout: Layout, good: list[list[str]], known: list[int], rows: int, *, reorder: bool) -> Layout:
    """With the order of the rows, and of the fields where these are free."""
    is_free = layout.template.is_free and reorder
    cells = [piece for piece in layout.pieces if isinstance(piece, int)]
    arranged = arrange([[row[cell] for cell in cells] for row in good], free_fields=is_free)
    orders = dict.fromkeys(range(rows), layout.pieces)
    if is_free:
        orders |= {known[at]: tuple(cells[field] for field in order) for at, order in enumerate(arranged.fields)}
    asked = [_Prompts(known[at], good[at], orders[known[at]]) for at in arranged.rows]
    shared, sharing = _count(asked, len(layout.lead), rows)
    rest = sorted(set(range(rows)) - set(known))
    return replace(
        layout,
        orders=tuple(orders.values()) if is_free else (),
        shared=shared,
        asking=(*(row.number for row in asked), *rest) if reorder and sharing.groups else None,
        sharing=sharing,
    )


@dataclass(frozen=True, slots=True)
class _Prompts:
    """A row in its turn."""

    number: int
    cells: list[str]
    pieces: tuple[_Piece, ...]

    def texts(self) -> Iterator[tuple[_Piece, str]]:
        for piece in self.pieces:
            yield piece, piece if isinstance(piece, str) else self.cells[piece]


def _count(asked: list[_Prompts], lead: int, rows: int) -> tuple[tuple[int, ...], PrefixSharing]:
    """What the tasks of a group share, by row, and what all tasks share with others."""
    same = [_in_common(last, row) for last, row in pairwise(asked)]
    shared = [lead] * rows
    for start, end in _groups([length if length >= _WORTH_A_MARK else 0 for length in same]):
        least = min(same[start:end])
        for row in asked[start : end + 1]:
            # One mark for all of a group, or for all of the run where that is worth more.
            shared[row.number] = lead + least if least > lead else lead
    total = sum(lead + sum(len(text) for _, text in row.texts()) for row in asked)
    return tuple(shared), PrefixSharing(len(asked), total, sum(same) + lead * len(same), len(_groups(same)))


def _groups(same: list[int]) -> list[tuple[int, int]]:
    """The first and the last row of each set of rows that share something with the next one."""
    edges = [at for at, (here, there) in enumerate(pairwise((0, *same, 0))) if (here > 0) != (there > 0)]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _in_common(one: _Prompts, other: _Prompts) -> int:
    """Characters after the lead, up to the first cell in which two rows differ."""
    length = 0
    for ours, theirs in zip(one.texts(), other.texts(), strict=True):
        if ours != theirs:
            break
        length += len(ours[1])
    return length


def _numbered(template: Template) -> list[_Piece]:
    numbers = count()
    return [part if isinstance(part, str) else next(numbers) for part in template.parts]


def _filled(pieces: Iterable[_Piece], texts: Mapping[int, str]) -> list[_Piece]:
    return [texts.get(piece, piece) if isinstance(piece, int) else piece for piece in pieces]


def _joined(pieces: Iterable[_Piece]) -> str:
    return "".join(piece for piece in pieces if isinstance(piece, str))
