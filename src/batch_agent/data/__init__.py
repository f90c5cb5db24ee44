"""Data in and out: inputs from wherever they are, results to files and tables."""

from ..core.lazily import lazy_imports
from .reading import check_apart as check_apart
from .reading import gather_inputs as gather_inputs
from .reading import read_inputs as read_inputs
from .sql import SqlQuery as SqlQuery

with lazy_imports(globals()):
    from .rows import as_row as as_row
    from .writing import ResultWriter as ResultWriter
    from .writing import Write as Write
    from .writing import open_results as open_results
    from .writing import results_to as results_to
