"""Inputs from a database query."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..lazy_imports import lazy_modules
from .optional_imports import require

with lazy_modules(globals()):
    from . import plain_values

_BATCH_ROWS = 1000


@dataclass(frozen=True, slots=True, init=False, repr=False)
class SqlQuery:
    """The rows of a query, each a dict by the names of its columns:

        SqlQuery("sqlite:///shop.db", "SELECT id, text FROM reviews WHERE stars <= :most", most=2)

    Needs the extra `sql`, and the driver of your database.
    The URL is SQLAlchemy's. Values are bound by name, never formatted into the text; a list is bound to `IN :ids`. Each
    iteration runs the query again. Iterating raises SpecError with the database's message."""

    url: str
    query: str
    parameters: Mapping[str, Any]

    def __init__(self, url: str, query: str, /, **parameters: Any) -> None:
        if not isinstance(url, str) or "://" not in url:
            raise SpecError(f"SqlQuery(...) needs a database URL, such as sqlite:///data.db, first; got {url!r}.")
        if not isinstance(query, str) or not query.strip():
            raise SpecError("SqlQuery(url, ...) needs a query, such as 'SELECT id, text FROM reviews'.")
        object.__setattr__(self, "url", url)
        object.__setattr__(self, "query", query)
        object.__setattr__(self, "parameters", parameters)

    def __repr__(self) -> str:
        """The query without the password."""
        return f"SqlQuery({self.url.partition('://')[0]}://..., {self.query!r})"

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self._rows() as rows:
            names = plain_values.check_unique(rows.keys(), "The query", "rename one of them with AS")
            for row in rows:
                yield {name: plain_values.plain_value(value) for name, value in zip(names, row, strict=True)}

    @contextmanager
    def _rows(self) -> Iterator[Any]:
        """Runs the query. Errors of the database, also while rows are read, are raised as SpecError."""
        sqlalchemy = require("sqlalchemy", "SqlQuery(...)", "'batch-agent[sql]'")
        try:
            url = sqlalchemy.make_url(self.url)
            engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.pool.NullPool)
        except (ImportError, ValueError, sqlalchemy.exc.ArgumentError) as error:
            hint = ". Install this driver of the database" if isinstance(error, ImportError) else ""
            raise SpecError(f"{self!r} cannot be opened: {error}{hint}.") from error
        _check_exists(url)
        try:
            with engine.connect().execution_options(yield_per=_BATCH_ROWS) as connection:
                rows = self._execute(connection, sqlalchemy)
                if not rows.returns_rows:
                    raise SpecError(f"{self!r} returns no rows: write a SELECT statement.")
                yield rows
        except sqlalchemy.exc.DBAPIError as error:
            raise SpecError(f"{self!r}: {str(error.orig).strip()}") from error
        except sqlalchemy.exc.SQLAlchemyError as error:
            raise SpecError(f"{self!r}: {error}") from error
        finally:
            engine.dispose()

    def _execute(self, connection: Any, sqlalchemy: Any) -> Any:
        if not self.parameters:  # then colons and percent signs are literal
            return connection.exec_driver_sql(self.query, execution_options={"no_parameters": True})
        lists = [name for name, value in self.parameters.items() if isinstance(value, list | tuple)]
        text = sqlalchemy.text(self.query).bindparams(*(sqlalchemy.bindparam(name, expanding=True) for name in lists))
        return connection.execute(text, dict(self.parameters))


def _check_exists(url: Any) -> None:
    """Prevents SQLite from creating a new database for a mistyped name."""
    name = url.database
    if url.get_backend_name() != "sqlite" or not name or name.startswith((":memory:", "file:")):
        return
    if not Path(name).is_file():
        raise SpecError(f"The database {name!r} does not exist.")
