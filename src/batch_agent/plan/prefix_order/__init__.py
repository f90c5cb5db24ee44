"""Order of a table's rows, and of the fields in each, in which prompts share most with the previous prompt.

After "Optimizing LLM Queries in Relational Data Analytics Workloads" (Liu et al.): few rows are searched for the best
arrangement, many are grouped greedily. An arrangement is a tree of groups. The rows of a group agree in some fields,
its head, and these come first in all of them, so of two rows that follow each other the shared length is that of the
smallest group that has both.
"""

from collections.abc import Sequence

from .greedy import EFFORT, draft_with_free_fields
from .table import Arrangement, Table, draft_in_given_order, draft_with_fixed_fields

__all__ = ["Arrangement", "arrange", "shared_prefix"]


def arrange(table: Sequence[Sequence[str]], *, free_fields: bool = True, effort: int = EFFORT) -> Arrangement:
    """Arrangement of `table[row][field]` that shares most, or nearly; never less than the table as given.

    Without `free_fields` all rows keep the order of their fields, and the result is the best there is. Groups come in
    the order of their first rows, and nothing moves where nothing is gained. `effort` bounds the search for the best
    arrangement of small groups; with none, all groups are greedy. Raises ValueError for rows with different numbers of
    fields.
    """
    cells = Table(table)
    layouts = [draft_in_given_order(cells), draft_with_fixed_fields(cells)]
    if free_fields:
        layouts.append(draft_with_free_fields(cells, effort))
    return max(map(cells.arrangement, layouts), key=lambda arrangement: arrangement.shared)


def shared_prefix(table: Sequence[Sequence[str]], rows: Sequence[int], fields: Sequence[Sequence[int]]) -> float:
    """Length that rows share with the previous row: whole cells, while field and text are the same."""
    return Table(table).shared(rows, fields)
