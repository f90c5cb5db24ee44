"""Inputs from a database."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import SpecError
from .column_names import check_unique
from .optional_imports import require
from .plain_values import plain_value

_AT_ONCE = 1000


@dataclass(frozen=True, slots=True, init=False, repr=False)
class SqlQuery:
    """The rows of a query, each a dict by the names of its columns:

        SqlQuery("sqlite:///shop.db", "SELECT id, text FROM reviews WHERE stars <= :most", most=2)

    Needs the extra `sql`, and the driver of your database.
    The URL is SQLAlchemy's. Values are given by name, never put into the text; a list stands for `IN :ids`. Every
    reading asks the database again. Reading raises SpecError, with the words of the database."""

    url: str
    query: str
    parameters: Mapping[str, Any]

    def __init__(self, url: str, query: str, /, **parameters: Any) -> None:
        if not isinstance(url, str) or "://" not in url:
            raise SpecError(f"SqlQuery(...) begins with a database URL such as sqlite:///data.db; got {url!r}.")
        if not isinstance(query, str) or not query.strip():
            raise SpecError("SqlQuery(url, ...) needs a query, such as 'SELECT id, text FROM reviews'.")
        object.__setattr__(self, "url", url)
        object.__setattr__(self, "query", query)
        object.__setattr__(self, "parameters", parameters)

    def __repr__(self) -> str:
        """Without the password."""
        return f"SqlQuery({self.url.partition('://')[0]}://..., {self.query!r})"

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self._rows() as rows:
            names = check_unique(rows.keys(), "The query", "give one another name with AS")
            for row in rows:
                yield {name: plain_value(value) for name, value in zip(names, row, strict=True)}

    @contextmanager
    def _rows(self) -> Iterator[Any]:
        """What the database says against it is raised as SpecError, also while it is read."""
        sqlalchemy = require("sqlalchemy", "SqlQuery(...)", "'batch-agent[sql]'")
        try:
            url = sqlalchemy.make_url(self.url)
            engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.pool.NullPool)
        except (ImportError, ValueError, sqlalchemy.exc.ArgumentError) as error:
            raise SpecError(f"{self!r} cannot be opened: {error}") from error
        _check_is_there(url)
        try:
            with engine.connect().execution_options(yield_per=_AT_ONCE) as connection:
                rows = self._asked(connection, sqlalchemy)
                if not rows.returns_rows:
                    raise SpecError(f"{self!r} gives no rows: write a SELECT.")
                yield rows
        except sqlalchemy.exc.DBAPIError as error:
            raise SpecError(f"{self!r}: {str(error.orig).strip()}") from error
        except sqlalchemy.exc.SQLAlchemyError as error:
            raise SpecError(f"{self!r}: {error}") from error
        finally:
            engine.dispose()

    def _asked(self, connection: Any, sqlalchemy: Any) -> Any:
        if not self.parameters:  # then a colon is a colon, and a percent sign one too
            return connection.exec_driver_sql(self.query, execution_options={"no_parameters": True})
        lists = [name for name, value in self.parameters.items() if isinstance(value, list | tuple)]
        text = sqlalchemy.text(self.query).bindparams(*(sqlalchemy.bindparam(name, expanding=True) for name in lists))
        return connection.execute(text, dict(self.parameters))


def _check_is_there(url: Any) -> None:
    """SQLite makes a new database of a name that is mistyped."""
    name = url.database
    if url.get_backend_name() != "sqlite" or not name or name.startswith((":memory:", "file:")):
        return
    if not Path(name).is_file():
        raise SpecError(f"There is no database {name!r}.")
