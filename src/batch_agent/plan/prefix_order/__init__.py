"""Order of a table's rows, and of the fields in each row, that maximizes what prompts share with the previous prompt.

After "Optimizing LLM Queries in Relational Data Analytics Workloads" (Liu et al.): few rows are searched for the best
arrangement, many rows are grouped greedily. An arrangement is a tree of groups. The rows of a group agree in some
fields, its head, which come first in all of them. Two consecutive rows thus share the length of the smallest group that
contains both."""

from collections.abc import Sequence

from .greedy import EFFORT, draft_with_free_fields
from .table import Arrangement, Table, draft_in_given_order, draft_with_fixed_fields

__all__ = ["Arrangement", "arrange", "shared_prefix"]


def arrange(table: Sequence[Sequence[str]], *, free_fields: bool = True, effort: int = EFFORT) -> Arrangement:
    """Arrangement of `table[row][field]` that shares the most, or nearly; never less than the given order.

    Without `free_fields`, all rows keep the order of their fields, and the result is optimal. Groups come in the order
    of their first rows, and nothing moves without a gain. `effort` bounds the search for the best arrangement of small
    groups; 0 groups everything greedily. Raises ValueError for rows with different numbers of fields."""
    cells = Table(table)
    layouts = [draft_in_given_order(cells), draft_with_fixed_fields(cells)]
    if free_fields:
        layouts.append(draft_with_free_fields(cells, effort))
    return max(map(cells.arrangement, layouts), key=lambda arrangement: arrangement.shared)


def shared_prefix(table: Sequence[Sequence[str]], rows: Sequence[int], fields: Sequence[Sequence[int]]) -> float:
    """Length that rows share with the previous row: whole cells, for as long as field and text are equal."""
    return Table(table).shared(rows, fields)
