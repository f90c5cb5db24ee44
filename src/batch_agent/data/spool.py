"""Rows on their way into a Parquet file, which can only be written whole."""

from pathlib import Path

from ..core.errors import SpecError
from ..core.json import dumps
from ..core.results import AgentResult
from ..files import atomic_replace
from .columns import in_order, table_row
from .parquet import write_parquet
from .rows import jsonable
from .shapes import NOTHING, Shape, in_duckdb, joined, shape_of


class Spool:
    """Each row is a line of JSON in a file; the types of the columns are found meanwhile."""

    def __init__(self) -> None:
        self._shapes: dict[str, Shape] = {}
        self._names: dict[str, str] = {}
        """Of columns, by those of fields."""
        self._longest = 0

    def line(self, result: AgentResult) -> bytes:
        """What is to be added to the file."""
        row = {self._names.get(name) or self._named(name): value for name, value in table_row(result).items()}
        for name, value in row.items():
            self._shapes[name] = joined(self._shapes[name], shape_of(value))
        line = dumps({name: jsonable(value) for name, value in row.items()}) + b"\n"
        self._longest = max(self._longest, len(line))
        return line

    def write(self, lines: Path, path: Path) -> None:
        """Puts a table of all lines into the place of `path`, at once; other threads may add lines meanwhile. Raises
        SpecError, and then leaves the older one."""
        names = in_order(list(self._shapes))
        columns = {name: in_duckdb(self._shapes.get(name, NOTHING)) for name in names}
        try:
            with atomic_replace(path) as draft:
                write_parquet(lines, columns, draft, self._longest)
        except OSError as error:
            raise SpecError(f"{error.strerror}.") from error

    def _named(self, name: str) -> str:
        """A new column. DuckDB does not tell A from a: the second has a number."""
        taken = {other.lower() for other in self._shapes}
        column, number = name, 1
        while column.lower() in taken:
            number += 1
            column = f"{name}_{number}"
        self._names[name] = column
        self._shapes[column] = NOTHING
        return column
