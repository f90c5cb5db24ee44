"""Asking a database, read-only: with queries that the model writes, or by keys, of which many become one query."""

import os
import sqlite3
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import GenericAlias
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from ...core.errors import SpecError
from ..tool import Tool, make_tool

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine, TextClause

_MOST_SCHEMA_CHARACTERS = 6_000
_MOST_CELL_BYTES = 10_000_000
_GRACE = 5.0
"""Seconds that the database has to stop a query before the call is given up."""
_STEPS_BETWEEN_LOOKS = 10_000
"""SQLite's virtual machine steps after which a query looks at the clock."""
_FIRST_WORDS = ("select", "with", "values", "table", "explain", "show")
_SHAPES = {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo", "foreign_key_list"}
_ASKED_INSIDE = {("read_uncommitted", None), ("data_version", None)}
"""By SQLAlchemy, and by SQLite's full text search."""
_DENIED = ("not authorized", "authorization denied", "attempt to write a readonly database")
_INT64 = range(-(2**63), 2**63)


class SqlError(Exception):
    """What the database said."""


def sql_tool(url: str, *, max_rows: int = 200, timeout: float = 30.0, name: str = "sql") -> Tool:
    """A tool `sql(query)` that reads the database at `url`, an SQLAlchemy URL (extra `sql`). The tables and columns are
    part of its description. Opens the database; raises SpecError.

    SQLite files are opened read-only, and nothing but reading that one file is allowed to a statement. In PostgreSQL
    every query is one statement in a READ ONLY transaction with a statement_timeout; functions may still do what the
    user's rights permit, so connect as one with few. Other databases are refused: nothing here keeps them safe."""
    database = _Database(url, timeout)
    if not database.is_guarded:
        raise SpecError(
            f"sql_tool keeps only SQLite and PostgreSQL read-only, not {database.kind!r}. "
            "Use sql_lookup_tool, or a @Tool.define function with the queries that are needed."
        )

    def sql(query: str) -> str:
        with database.reading() as connection:
            database.check(query)
            result = connection.exec_driver_sql(query, execution_options={"no_parameters": True})
            if not result.returns_rows:
                raise SqlError("the statement gave no rows; write one SELECT statement")
            return _table(list(result.keys()), result.fetchmany(max_rows + 1), max_rows)

    described = (
        f"Run one read-only {database.kind} SELECT statement; at most {max_rows} rows are shown. "
        f"The result is a line with the column names, then one line for each row.\n\n{database.schema()}"
    )
    return make_tool(
        sql, name=name, description=described, effect="read", version=database.version, timeout=timeout + _GRACE
    )


def sql_lookup_tool(
    url: str,
    statement: str,
    *,
    key: str,
    name: str,
    description: str,
    key_type: type[int] | type[str] = int,
    max_rows: int = 50,
    max_batch: int = 100,
    window: float = 0.005,
    timeout: float = 30.0,
) -> Tool:
    """A tool `name(key)` that gives the rows for one key, such as `get_user(id=7)`. Calls of different agents that
    arrive together become one execution of `statement`, in which one parameter stands for all their keys:

        sql_lookup_tool(url, "SELECT id, name FROM users WHERE id IN :ids", key="id", name="get_user", description=...)

    `key` is both the argument that the model sees and the column that says whose row it is; at most `max_rows` are
    shown for each. Opens the database and tries the statement without keys; raises SpecError."""
    database = _Database(url, timeout)
    lookup = _Lookup(database, *_expanding(statement), key, key_type, max_rows)

    def rows(keys: list[Any]) -> list[Any]:
        return lookup.answers(keys)

    rows.__annotations__["keys"] = GenericAlias(list, (key_type,))
    make = Tool.batchable(
        key_arg=key,
        max_batch=max_batch,
        window=window,
        name=name,
        description=description,
        version=database.version,
        timeout=timeout + _GRACE,
    )
    return make(rows)


class _Database:
    """A database that is only read. Safe to use from several threads."""

    def __init__(self, url: str, timeout: float) -> None:
        sqlalchemy = _sqlalchemy()
        try:
            parsed = sqlalchemy.make_url(url)
        except sqlalchemy.exc.ArgumentError as error:
            raise SpecError(f"{url!r} is not a database URL; write one such as sqlite:///data.db.") from error
        self.kind = parsed.get_backend_name()
        self.is_guarded = self.kind in ("sqlite", "postgresql")
        self._shown_url = parsed.render_as_string(hide_password=True)
        self._timeout = timeout
        self._file = _sqlite_file(parsed) if self.kind == "sqlite" else None
        try:
            self._engine = self._open(parsed)
        except (ImportError, sqlalchemy.exc.ArgumentError) as error:
            raise SpecError(f"{self._shown_url} cannot be opened: {error}") from error

    @property
    def version(self) -> Callable[[Mapping[str, Any]], Hashable] | None:
        """What changes when the database does, where that can be told without asking it."""
        file = self._file
        if file is None:
            return None
        return lambda arguments: tuple(map(_mark, (file, Path(f"{file}-wal"))))

    @contextmanager
    def reading(self) -> "Iterator[Connection]":
        """A connection for one statement. What the database says against it is raised as SqlError."""
        errors = _sqlalchemy().exc
        try:
            with self._engine.connect() as connection:
                if self.kind == "postgresql":
                    connection.exec_driver_sql("SET TRANSACTION READ ONLY")
                    connection.exec_driver_sql(f"SET LOCAL statement_timeout = {round(self._timeout * 1000)}")
                yield connection
        except errors.DBAPIError as error:
            raise SqlError(self._said(str(error.orig).strip())) from None
        except (errors.SQLAlchemyError, sqlite3.Warning) as error:  # the second for more than one statement
            raise SqlError(str(error)) from None

    def _said(self, words: str) -> str:
        """SQLite's own words for what it was told to do here say little."""
        if words == "interrupted":
            return f"the query took longer than {self._timeout:g} s"
        return f"only reading is allowed ({words})" if words in _DENIED else words

    def check(self, query: str) -> None:
        """SQLite itself takes one statement only, and asks before anything else than reading. Elsewhere a semicolon is
        refused wherever it stands, because what is quoted and what is not is for the server to say."""
        if self.kind == "sqlite":
            return
        text = query.strip().rstrip(";")
        if ";" in text:
            raise SqlError("write one statement only; a semicolon inside of a text is chr(59)")
        if not text.lstrip("( \n\t").lower().startswith(_FIRST_WORDS):
            raise SqlError(f"only reading is allowed; begin with one of {', '.join(map(str.upper, _FIRST_WORDS))}")

    def schema(self) -> str:
        """The tables with their columns, as far as they fit into a prompt."""
        try:
            with self.reading() as connection:
                inspector = _sqlalchemy().inspect(connection)
                tables = sorted([*inspector.get_table_names(), *inspector.get_view_names()])
                lines = [_table_line(table, inspector.get_columns(table)) for table in tables]
        except SqlError as error:
            raise SpecError(f"{self._shown_url} cannot be read: {error}") from error
        text = "Tables:\n" + ("\n".join(lines) or "(none)")
        if len(text) <= _MOST_SCHEMA_CHARACTERS:
            return text
        where = "sqlite_master" if self.kind == "sqlite" else "information_schema.columns"
        return f"{text[:_MOST_SCHEMA_CHARACTERS]}\n[cut here; {len(tables)} tables in all, see {where}]"

    def _open(self, url: "URL") -> "Engine":
        sqlalchemy = _sqlalchemy()
        engine: Engine
        if self._file is None:
            engine = sqlalchemy.create_engine(url, pool_pre_ping=True)
        else:  # opening a file costs little, and no connection is left behind in a thread
            pool = sqlalchemy.pool.NullPool
            engine = sqlalchemy.create_engine("sqlite://", creator=self._connect_sqlite, poolclass=pool)
        return engine

    def _connect_sqlite(self) -> sqlite3.Connection:
        assert self._file is not None
        connection = sqlite3.connect(f"{self._file.as_uri()}?mode=ro", uri=True)
        connection.execute("PRAGMA query_only=ON")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_CELL_BYTES)
        deadline = time.monotonic() + self._timeout
        connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_BETWEEN_LOOKS)
        connection.set_authorizer(_authorize)
        return connection


class _Lookup:
    """One statement for many keys."""

    def __init__(
        self, database: _Database, statement: "TextClause", parameter: str, key: str, key_type: type, max_rows: int
    ) -> None:
        self._database = database
        self._statement = statement
        self._parameter = parameter
        self._key = key
        self._key_type = key_type
        self._max_rows = max_rows
        try:
            columns, _ = self._ask([])
        except SqlError as error:
            raise SpecError(f"The statement {str(statement)!r} does not work: {error}") from error
        if key not in columns:
            raise SpecError(f"The statement must give a column {key!r}, to tell whose row it is; it gives {columns}.")

    def answers(self, keys: Sequence[Any]) -> list[Any]:
        """For each key its row, its rows, or a sentence that there is none. An exception stands for a key that no
        database can take."""
        good = [key for key in dict.fromkeys(keys) if not isinstance(key, int) or key in _INT64]
        found = self._found(good)
        return [self._answer(key, found[key]) if key in found else _too_large(key) for key in keys]

    def _found(self, keys: list[Any]) -> dict[Any, list[dict[str, Any]]]:
        found: dict[Any, list[dict[str, Any]]] = {key: [] for key in keys}
        strays = 0
        for row in self._ask(keys)[1]:
            owner = self._owner(row)
            strays += owner not in found
            if owner in found:
                found[owner].append(row)
        if strays:  # the database thinks keys equal which are not so here, as in a collation without case
            for key in keys:
                found[key] = found[key] or self._ask([key])[1]
        return found

    def _owner(self, row: Mapping[str, Any]) -> Any:
        try:
            return self._key_type(row[self._key])
        except (TypeError, ValueError):
            return None

    def _ask(self, keys: list[Any]) -> tuple[list[str], list[dict[str, Any]]]:
        with self._database.reading() as connection:
            result = connection.execute(self._statement, {self._parameter: keys})
            return list(result.keys()), [dict(row) for row in result.mappings()]

    def _answer(self, key: Any, rows: list[dict[str, Any]]) -> Any:
        if not rows:
            return f"There is nothing for {self._key} {key!r}."
        if len(rows) > self._max_rows:
            return [*rows[: self._max_rows], f"[cut here: {self._max_rows} of {len(rows)} rows are shown]"]
        return rows[0] if len(rows) == 1 else rows


def _sqlalchemy() -> Any:
    try:
        import sqlalchemy
    except ImportError as error:
        raise SpecError("The SQL tools need a package: pip install 'batch-agent[sql]'.") from error
    return sqlalchemy


def _sqlite_file(url: "URL") -> Path:
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        raise SpecError(f"{str(url)!r} names no file; write sqlite:///data.db, or sqlite:////data.db from the root.")
    file = Path(url.database).resolve()
    if not file.is_file():
        raise SpecError(f"There is no database file {str(file)!r}.")
    return file


def _mark(file: Path) -> Hashable:
    try:
        found = os.stat(file)
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _authorize(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    """The file is read-only as it was opened; this keeps a statement from other files and from settings."""
    other = action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)
    sets = action == sqlite3.SQLITE_PRAGMA and first not in _SHAPES and (first, second) not in _ASKED_INSIDE
    return sqlite3.SQLITE_DENY if other or sets else sqlite3.SQLITE_OK


def _expanding(statement: str) -> "tuple[TextClause, str]":
    sqlalchemy = _sqlalchemy()
    text = sqlalchemy.text(statement)
    names = list(text.compile().params)
    if len(names) != 1:
        raise SpecError(
            f"The statement {statement!r} must have one parameter for the keys, as in WHERE id IN :ids; it has {names}."
        )
    return text.bindparams(sqlalchemy.bindparam(names[0], expanding=True)), names[0]


def _too_large(key: int) -> ValueError:
    return ValueError(f"{key} is too large for a database; a key has at most 64 bits")


def _table_line(table: str, columns: Sequence[Mapping[str, Any]]) -> str:
    return "{}({})".format(
        table, ", ".join(f"{column['name']} {column['type']}".removesuffix(" NULL") for column in columns)
    )


def _table(columns: Sequence[str], rows: Sequence[Any], most: int) -> str:
    lines = [_line(columns), *(_line(row) for row in rows[:most])]
    if len(rows) > most:
        lines.append(f"[cut here: only the first {most} rows are shown; narrow the query down or count]")
    else:
        lines.append(f"[{len(rows)} row{'' if len(rows) == 1 else 's'}]")
    return "\n".join(lines)


def _line(cells: Sequence[Any]) -> str:
    return to_json([_cell(cell) for cell in cells], fallback=str, inf_nan_mode="strings").decode()


def _cell(value: Any) -> Any:
    return f"[{len(value)} bytes]" if isinstance(value, bytes | memoryview) else value


Tool.sql = staticmethod(sql_tool)
