"""Inputs from files, tables and databases; results to files and tables."""

from ..lazy_imports import lazy_imports
from .inputs import check_output_path as check_output_path
from .inputs import read_inputs as read_inputs
from .inputs import read_inputs_async as read_inputs_async
from .sql_query import SqlQuery as SqlQuery

with lazy_imports(globals()):
    from .result_rows import as_row as as_row
    from .result_writers import ResultWriter as ResultWriter
    from .result_writers import Write as Write
    from .result_writers import open_results as open_results
    from .result_writers import result_file_writer as result_file_writer
