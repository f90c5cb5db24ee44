"""Read-only access to a database: opening it, checking statements, describing its tables."""

import os
import sqlite3
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import SpecError
from ...core.options.backend_settings import variable_in
from .sqlite_process import QueryError, QueryRows, SqliteProcesses
from .sqlite_program import connect

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, CursorResult, Engine

_MAX_SCHEMA_CHARS = 6_000
_READ_KEYWORDS = ("select", "with", "values", "table", "explain", "show")
_WITHOUT_CURSOR = ("explain", "show")
"""Statements of PostgreSQL that a cursor does not take; their results are small."""
_DENIED = ("not authorized", "authorization denied", "attempt to write a readonly database")


class SqlError(Exception):
    """An error of the database. The message is for the model."""


class Database:
    """Read-only database. Thread-safe. A copy in another process opens the database by itself."""

    def __init__(self, url: str, timeout: float, file: Path | None = None) -> None:
        """`file`: of a SQLite database, if the URL is relative to another directory. Raises SpecError."""
        sqlalchemy = sqlalchemy_package()
        try:
            parsed = sqlalchemy.make_url(url)
        except sqlalchemy.exc.ArgumentError as error:
            raise SpecError(f"{url!r} is not a database URL; write one such as sqlite:///data.db.") from error
        self.kind = parsed.get_backend_name()
        self.is_guarded = self.kind in ("sqlite", "postgresql")
        self._shown_url = parsed.render_as_string(hide_password=True)
        self._url = url
        self._has_secret = _has_secret(parsed)
        parsed = _with_password(parsed, self._shown_url)
        self._timeout = timeout
        self._file = _sqlite_file(parsed, file) if self.kind == "sqlite" else None
        has_limits = self._file is not None and sys.platform != "win32"
        self._processes = SqliteProcesses(self._file, timeout) if has_limits and self._file is not None else None
        try:
            self._engine = self._open(parsed)
        except (ImportError, sqlalchemy.exc.ArgumentError) as error:
            hint = ". Install this driver of the database" if isinstance(error, ImportError) else ""
            raise SpecError(f"{self._shown_url} cannot be opened: {error}{hint}.") from error

    def __reduce__(self) -> tuple[Any, ...]:
        if self._has_secret:
            raise SpecError(
                f"the URL {self._shown_url} contains a password, which is not sent: write ${{NAME}} in its place, and "
                "set the environment variable NAME on every machine"
            )
        return Database, (self._url, self._timeout, self._file)

    @property
    def version(self) -> Callable[[Mapping[str, Any]], Hashable] | None:
        """Version that changes with the database; None if it is not known without a query."""
        file = self._file
        if file is None:
            return None
        return lambda arguments: tuple(map(_mark, (file, Path(f"{file}-wal"))))

    @contextmanager
    def reading(self) -> "Iterator[Connection]":
        """Connection for one statement. Errors of the database are raised as SqlError."""
        errors = sqlalchemy_package().exc
        try:
            with self._engine.connect() as connection:
                if self.kind == "postgresql":
                    connection.exec_driver_sql("SET TRANSACTION READ ONLY")
                    connection.exec_driver_sql(f"SET LOCAL statement_timeout = {round(self._timeout * 1000)}")
                yield connection
        except errors.DBAPIError as error:
            raise SqlError(self._explain(str(error.orig).strip())) from None
        except (errors.SQLAlchemyError, sqlite3.Warning) as error:  # the second for more than one statement
            raise SqlError(str(error)) from None

    def rows(self, query: str, max_rows: int) -> QueryRows:
        """At most `max_rows` rows of a query that a model wrote. Blocks. Raises SqlError."""
        if self._processes is not None:
            try:
                found = self._processes.query(query, max_rows)
            except QueryError as error:
                raise SqlError(self._explain(str(error))) from None
        else:
            found = self._rows_here(query, max_rows)
        if found is None:
            raise SqlError("the statement gave no rows; write one SELECT statement")
        return found

    def _rows_here(self, query: str, max_rows: int) -> QueryRows | None:
        with self.reading() as connection:
            self.check(query)
            run = _run_with_cursor if self.kind == "postgresql" else _run
            result = run(connection, query, max_rows)
            if not result.returns_rows:
                return None
            rows = result.fetchmany(max_rows + 1)
            return QueryRows(list(result.keys()), rows[:max_rows], len(rows) > max_rows)

    def _explain(self, message: str) -> str:
        """Replaces messages of SQLite that do not name the limit that was hit."""
        if message == "interrupted":
            return f"the query took longer than {self._timeout:g} s"
        return f"only reading is allowed ({message})" if message in _DENIED else message

    def check(self, query: str) -> None:
        """Raises SqlError for what is not one reading statement. SQLite itself accepts only one statement, and its
        authorizer only reading. For other databases a semicolon is rejected everywhere, because only the server knows
        what is quoted."""
        if self.kind == "sqlite":
            return
        text = query.strip().rstrip(";")
        if ";" in text:
            raise SqlError("write one statement only; a semicolon inside of a text is chr(59)")
        if not _start(text).startswith(_READ_KEYWORDS):
            raise SqlError(f"only reading is allowed; begin with one of {', '.join(map(str.upper, _READ_KEYWORDS))}")

    def schema(self) -> str:
        """Tables and columns, as far as they fit into a prompt."""
        try:
            with self.reading() as connection:
                inspector = sqlalchemy_package().inspect(connection)
                tables = sorted([*inspector.get_table_names(), *inspector.get_view_names()])
                lines = [_table_line(table, inspector.get_columns(table)) for table in tables]
        except SqlError as error:
            raise SpecError(f"{self._shown_url} cannot be read: {error}") from error
        text = "Tables:\n" + ("\n".join(lines) or "(none)")
        if len(text) <= _MAX_SCHEMA_CHARS:
            return text
        where = "sqlite_master" if self.kind == "sqlite" else "information_schema.columns"
        return f"{text[:_MAX_SCHEMA_CHARS]}\n[cut here; {len(tables)} tables in all, see {where}]"

    def _open(self, url: "URL") -> "Engine":
        sqlalchemy = sqlalchemy_package()
        engine: Engine
        if self._file is None:
            engine = sqlalchemy.create_engine(url, pool_pre_ping=True)
        else:  # opening a file is cheap, and leaves no connection behind in a thread
            pool = sqlalchemy.pool.NullPool
            engine = sqlalchemy.create_engine("sqlite://", creator=self._connect_sqlite, poolclass=pool)
        return engine

    def _connect_sqlite(self) -> sqlite3.Connection:
        assert self._file is not None
        return connect(f"{self._file.as_uri()}?mode=ro", self._timeout)


def sqlalchemy_package() -> Any:
    """Imports SQLAlchemy, which is an optional dependency. Raises SpecError."""
    try:
        import sqlalchemy
    except ImportError as error:
        raise SpecError("The SQL tools need a package: pip install 'batch-agent[sql]'.") from error
    return sqlalchemy


def _run(connection: "Connection", query: str, max_rows: int = 0) -> "CursorResult[Any]":
    return connection.exec_driver_sql(query, execution_options={"no_parameters": True})


def _run_with_cursor(connection: "Connection", query: str, max_rows: int) -> "CursorResult[Any]":
    """Gets one row more than `max_rows`, which shows that there are more. Without a cursor, the drivers of PostgreSQL
    read all rows into memory before they return the first one."""
    if _start(query).startswith(_WITHOUT_CURSOR):
        return _run(connection, query)
    _run(connection, f"DECLARE found NO SCROLL CURSOR FOR\n{query}")
    return _run(connection, f"FETCH {max_rows + 1} FROM found")


def _start(query: str) -> str:
    return query.lstrip("( \r\n\t").lower()


def _has_secret(url: "URL") -> bool:
    return "password" in url.query or (bool(url.password) and variable_in(str(url.password)) is None)


def _with_password(url: "URL", shown: str) -> "URL":
    """The URL with the value of the variable that stands for its password. Raises SpecError."""
    variable = variable_in(str(url.password or ""))
    if variable is None:
        return url
    if variable not in os.environ:
        raise SpecError(f"{shown}: the environment variable {variable} is not set on this machine.")
    return url.set(password=os.environ[variable])


def _sqlite_file(url: "URL", known: Path | None) -> Path:
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        raise SpecError(f"{str(url)!r} names no file; write sqlite:///data.db, or sqlite:////data.db from the root.")
    file = known or Path(url.database).resolve()
    if not file.is_file():
        raise SpecError(f"The database file {str(file)!r} does not exist.")
    return file


def _mark(file: Path) -> Hashable:
    try:
        found = os.stat(file)
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _table_line(table: str, columns: Sequence[Mapping[str, Any]]) -> str:
    return "{}({})".format(
        table, ", ".join(f"{column['name']} {column['type']}".removesuffix(" NULL") for column in columns)
    )
