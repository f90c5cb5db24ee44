"""Layout of tasks for the prefix cache: first the text that all agents share, then text that some share, then each
agent's own."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

from ..core.fast_dataclass import dataclass
from ..core.json import replace_surrogates
from ..lazy_imports import lazy_modules
from .template import BadInput, Template, block

with lazy_modules(globals()):
    from . import prefix_order

_MIN_HOISTED_CHARS = 200
"""Minimum length of a constant that is moved to the lead. Replacing a shorter one by a reference would save nothing."""

CHARS_PER_TOKEN = 4.0
"""Used if the server does not count tokens."""
MIN_BREAKPOINT_CHARS = 1024
"""Minimum characters that a group shares for a cache breakpoint. Services do not cache shorter prefixes."""

_MAX_LAST_PARAGRAPH_CHARS = 400
"""A longer paragraph at the end of the lead is split at its last line, so that more of it stays shared."""

_Piece = str | int
"""Text, or the index of a cell."""


@dataclass(frozen=True, slots=True)
class PrefixSharing:
    """Characters that the tasks of a run share."""

    rows: int
    total: int
    """Characters of all tasks."""
    shared: int
    """Characters that a task shares with another one, so that the server need not compute them again."""
    groups: int
    """Number of sets of tasks that share more than all tasks do."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Order of the parts of each task, and the order in which the inputs run."""

    template: Template
    lead: str
    """Text at the beginning of every task."""
    constants: tuple[tuple[int, str], ...]
    """Cells that are equal in all inputs, and are part of the lead."""
    pieces: tuple[_Piece, ...]
    """Parts after the lead."""
    orders: tuple[tuple[_Piece, ...], ...] = ()
    """Parts after the lead by row, if each row may have its own order."""
    shared: tuple[int, ...] = ()
    """Characters at the beginning of each row's task that its group or all tasks share."""
    run_order: tuple[int, ...] | None = None
    """Rows in run order; None: the order of the inputs."""
    sharing: PrefixSharing | None = None
    """None if the inputs are not known in advance."""

    @property
    def varying(self) -> tuple[str, ...]:
        """Names of the fields that differ between inputs, in the order of the task that runs first."""
        names = self.template.cell_names
        pieces = self.orders[self.run_order[0]] if self.orders and self.run_order else self.pieces
        return tuple(dict.fromkeys(names[piece] for piece in pieces if isinstance(piece, int)))

    def task(self, row: int, value: Any) -> tuple[str, int]:
        """Task of an input, and the number of its characters that other tasks share. Raises BadInput."""
        cells = self.template.cells(value)
        if self.constants and any(cells[cell] != text for cell, text in self.constants):
            return self.template.render(value), 0  # not the input that the layout was made for
        pieces = self.orders[row] if row < len(self.orders) else self.pieces  # lists may have grown since
        parts = [piece if isinstance(piece, str) else cells[piece] for piece in pieces]
        text = replace_surrogates(self.lead + "".join(parts))
        return text, min(len(text), self.shared[row] if row < len(self.shared) else len(self.lead))


def last_line_end(lead: str) -> int:
    """Position where the last paragraph of a text begins, or its last line if that paragraph is long; 0 for a single
    line."""
    paragraph, line = lead.rfind("\n\n") + 2, lead.rfind("\n") + 1
    return paragraph if paragraph > 1 and len(lead) - paragraph <= _MAX_LAST_PARAGRAPH_CHARS else line


def default_layout(template: Template) -> Layout:
    """Layout for inputs that are not known in advance."""
    pieces = _numbered(template)
    at = next((at for at, piece in enumerate(pieces) if isinstance(piece, int)), len(pieces))
    return Layout(template, _joined(pieces[:at]), (), tuple(pieces[at:]))


def compute_layout(template: Template, rows: Sequence[Any], *, hoist: bool = True, reorder: bool = True) -> Layout:
    """Layout for inputs that are all known. Ignores inputs that do not fit the task; their jobs carry the error."""
    table = [_cells(template, row) for row in rows]
    known = [at for at, cells in enumerate(table) if cells is not None]
    if len(known) < 2:
        return default_layout(template)
    fitting = [cells for cells in table if cells is not None]
    constant = _constant(fitting) if hoist else {}
    lead, pieces = _lead(template, constant)
    laid_out = Layout(template, lead, tuple(constant.items()), pieces)
    if not template.is_free and _ends_sharing(pieces, fitting):
        return _without_groups(laid_out, fitting)
    return _ordered(laid_out, fitting, known, len(table), reorder=reorder)


def _cells(template: Template, value: Any) -> list[str] | None:
    try:
        return template.cells(value)
    except BadInput:
        return None


def _constant(table: Sequence[list[str]]) -> dict[int, str]:
    """Cells that are equal in all rows."""
    return {
        cell: text for cell, text in enumerate(table[0]) if all(row[cell] is text or row[cell] == text for row in table)
    }


def _lead(template: Template, constant: dict[int, str]) -> tuple[str, tuple[_Piece, ...]]:
    """Lead of every task, and the parts after it. In a task with a fixed order, a constant moves to the lead only if it
    is long enough and comes after a varying field; a reference replaces it."""
    pieces = _numbered(template)
    if template.is_free:
        first = [piece for piece in pieces if isinstance(piece, str) or piece in constant]
        return _joined(_filled(first, constant)), tuple(piece for piece in pieces if piece not in first)
    at = next((at for at, piece in enumerate(pieces) if isinstance(piece, int) and piece not in constant), len(pieces))
    hoistable = {
        piece for piece in pieces[at:] if isinstance(piece, int) and len(constant.get(piece, "")) >= _MIN_HOISTED_CHARS
    }
    names = template.cell_names
    hoisted = {names[cell]: constant[cell] for cell in sorted(hoistable & template.certain_cells)}
    mentions = {
        cell: f"(see {name} above)"
        for cell, name in enumerate(names)
        if name in hoisted and constant.get(cell) == hoisted[name]
    }
    filled = _filled(pieces, {**constant, **mentions})
    blocks = [f"{block(name, text)}\n" for name, text in hoisted.items()]
    return _joined([*blocks, *filled[:at]]), tuple(filled[at:])


def _ends_sharing(pieces: tuple[_Piece, ...], table: list[list[str]]) -> bool:
    """Whether the first cell after the lead differs in every row, which is nearly always the case."""
    first = next((piece for piece in pieces if isinstance(piece, int)), None)
    return first is not None and len({row[first] for row in table}) == len(table)


def _without_groups(layout: Layout, table: list[list[str]]) -> Layout:
    lead, rows = len(layout.lead), len(table)
    texts = sum(len(piece) for piece in layout.pieces if isinstance(piece, str))
    cells = [piece for piece in layout.pieces if isinstance(piece, int)]
    total = rows * (lead + texts) + sum(len(row[cell]) for row in table for cell in cells)
    return replace(layout, sharing=PrefixSharing(rows, total, (rows - 1) * lead, 0))


def _ordered(layout: Layout, fitting: list[list[str]], known: list[int], rows: int, *, reorder: bool) -> Layout:
    """The layout with an order of the rows and, if fields are free, of the fields."""
    is_free = layout.template.is_free and reorder
    cells = [piece for piece in layout.pieces if isinstance(piece, int)]
    arranged = prefix_order.arrange([[row[cell] for cell in cells] for row in fitting], free_fields=is_free)
    orders = dict.fromkeys(range(rows), layout.pieces)
    if is_free:
        orders |= {known[at]: tuple(cells[field] for field in order) for at, order in enumerate(arranged.fields)}
    ordered = [_Row(known[at], fitting[at], orders[known[at]]) for at in arranged.rows]
    shared, sharing = _count(ordered, len(layout.lead), rows)
    rest = sorted(set(range(rows)) - set(known))
    return replace(
        layout,
        orders=tuple(orders.values()) if is_free else (),
        shared=shared,
        run_order=(*(row.number for row in ordered), *rest) if reorder and sharing.groups else None,
        sharing=sharing,
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """Row of the table, with the order of its parts."""

    number: int
    cells: list[str]
    pieces: tuple[_Piece, ...]

    def texts(self) -> Iterator[tuple[_Piece, str]]:
        for piece in self.pieces:
            yield piece, piece if isinstance(piece, str) else self.cells[piece]


def _count(ordered: list[_Row], lead: int, rows: int) -> tuple[tuple[int, ...], PrefixSharing]:
    """Characters that the tasks of a group share, by row, and the sharing in the whole run."""
    same = [_in_common(last, row) for last, row in pairwise(ordered)]
    shared = [lead] * rows
    for start, end in _groups([length if length >= MIN_BREAKPOINT_CHARS else 0 for length in same]):
        least = min(same[start:end])
        for row in ordered[start : end + 1]:
            # One cache breakpoint per group, or for the whole run if its lead is longer.
            shared[row.number] = lead + least if least > lead else lead
    total = sum(lead + sum(len(text) for _, text in row.texts()) for row in ordered)
    return tuple(shared), PrefixSharing(len(ordered), total, sum(same) + lead * len(same), len(_groups(same)))


def _groups(same: list[int]) -> list[tuple[int, int]]:
    """First and last row of each sequence of rows in which each shares something with the next one."""
    edges = [at for at, (here, there) in enumerate(pairwise((0, *same, 0))) if (here > 0) != (there > 0)]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _in_common(one: _Row, other: _Row) -> int:
    """Number of characters after the lead up to the first cell in which two rows differ."""
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
