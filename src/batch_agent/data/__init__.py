"""Data in and out: inputs from wherever they are, results to files and tables."""

from .reading import check_apart, gather_inputs, read_inputs
from .rows import as_row
from .sql import SqlQuery
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
