"""Data in and out: inputs from wherever they are, results to files and tables."""

from typing import TYPE_CHECKING

from ..core.lazily import names_from
from .reading import check_apart, gather_inputs, read_inputs
from .sql import SqlQuery

if TYPE_CHECKING:
    from .rows import as_row
    from .writing import ResultWriter, Write, open_results, results_to

__all__ = [
    "ResultWriter",
    "SqlQuery",
    "Write",
    "as_row",
    "check_apart",
    "gather_inputs",
    "open_results",
    "read_inputs",
    "results_to",
]

if not TYPE_CHECKING:  # a type checker sees the imports above, and names that are not there
    __getattr__ = names_from(__name__, {".rows": "as_row", ".writing": "ResultWriter Write open_results results_to"})
