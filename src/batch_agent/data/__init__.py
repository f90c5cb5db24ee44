"""Inputs from files, tables and databases; results to files and tables."""

from ..lazy_imports import lazy_imports
from .inputs import check_apart as check_apart
from .inputs import gather_inputs as gather_inputs
from .inputs import read_inputs as read_inputs
from .sql_query import SqlQuery as SqlQuery

with lazy_imports(globals()):
    from .result_rows import as_row as as_row
    from .result_writers import ResultWriter as ResultWriter
    from .result_writers import Write as Write
    from .result_writers import open_results as open_results
    from .result_writers import results_to as results_to
